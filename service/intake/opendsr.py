"""OpenDSR requests as deletion requests of the native form."""

from __future__ import annotations

from collections.abc import Sequence

from service.http.opendsr_errors import UnsupportedRequest
from service.http.strict_json import read_json
from service.schemas.deletions import DeletionCreate, IdentityIn
from service.schemas.identity_leaks import IN_URL, url_names
from service.schemas.opendsr import SUPPORTED_FORMAT, SUPPORTED_REQUEST, OpenDsrRequest, OwnExtension, SubjectIdentity


def read_opendsr(raw: bytes, domain: str) -> OpenDsrRequest:
    """Read the body of `POST /v2/requests`. Under `domain` its extensions may hold the identities.

    Raises ValidationError, or UnsupportedRequest for what this processor does not do.
    """
    body = OpenDsrRequest.model_validate(read_json(raw))
    if body.subject_request_type != SUPPORTED_REQUEST:
        raise UnsupportedRequest("unsupported_request_type", "only erasure is supported; see /v2/discovery")
    identities = body.subject_identities or _identities_in_extensions(body, domain)
    if any(identity.identity_format != SUPPORTED_FORMAT for identity in identities):
        raise UnsupportedRequest("unsupported_identity_format", "send identities in format raw; see /v2/discovery")
    if any(url_names(url, [item.identity_value for item in identities]) for url in body.status_callback_urls or ()):
        raise UnsupportedRequest("identity_in_url", f"status_callback_urls {IN_URL}")
    return body.model_copy(update={"subject_identities": identities})


def native_body(body: OpenDsrRequest) -> DeletionCreate:
    """Return the same request in the form of the native API."""
    # Already validated by OpenDSR's rules, which allow more callback URLs.
    return DeletionCreate.model_construct(
        regulation=body.regulation,
        subjects=[
            IdentityIn(identity_type=identity.identity_type, identity_value=identity.identity_value)
            for identity in body.subject_identities or []
        ],
        callback_urls=body.status_callback_urls or [],
    )


def _identities_in_extensions(body: OpenDsrRequest, domain: str) -> Sequence[SubjectIdentity]:
    extension = (body.extensions or {}).get(domain)
    if not extension:
        message = f"send subject_identities, or the same list under {domain} in extensions"
        raise UnsupportedRequest("no_identity", message)
    return OwnExtension.model_validate(extension).subject_identities
