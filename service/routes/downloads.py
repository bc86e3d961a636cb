"""Downloads of receipts and certificates: as a signed bundle, as PDF and as HTML."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Response

from service.resources import DeletionReader, Resources, ResourcesDep, visible_owner
from service.store.certificates import bundles
from vocabulary.signed_model import Sha256

router = APIRouter(prefix="/api/v1", tags=["certificates"])


class Form(StrEnum):
    """Chosen by the extension of the path, or by `Accept`."""

    JSON = "json"
    PDF = "pdf"
    HTML = "html"


MEDIA_TYPES = {Form.JSON: "application/json", Form.PDF: "application/pdf", Form.HTML: "text/html"}
RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Signed bundle for `lethe verify`. With `Accept: application/pdf` or `text/html`, or the "
        "extension `.pdf` or `.html`, the same content to print or read.",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "application/pdf": {"schema": {"type": "string", "format": "binary"}},
            "text/html": {"schema": {"type": "string"}},
        },
    }
}
Accept = Annotated[str, Header(description="`application/json`, `application/pdf` or `text/html`; JSON by default.")]


@dataclass(frozen=True)
class Download:
    bundle: str
    name: str
    successor: str | None = None
    """Path of the certificate that was issued in its stead."""


def certificate(certificate_id: uuid.UUID, caller: DeletionReader, resources: ResourcesDep) -> Download:
    owner = visible_owner(caller)
    with resources.database.reading() as session:
        bundle = bundles.find_certificate(session, certificate_id, owner, cosigned=_has_witnesses(resources))
        successor = bundles.find_successor(session, certificate_id, owner)
    path = f"/api/v1/certificates/{successor}" if successor else None
    return Download(bundle, f"lethe-certificate-{certificate_id}", path)


def absence(
    deletion_id: uuid.UUID,
    caller: DeletionReader,
    resources: ResourcesDep,
    statement: Annotated[
        Sha256 | None, Query(description="Digest of its statement: for one that was replaced. By default the newest.")
    ] = None,
) -> Download:
    owner, cosigned = visible_owner(caller), _has_witnesses(resources)
    with resources.database.reading() as session:
        bundle = bundles.find_absence(session, deletion_id, owner, statement, cosigned=cosigned)
    return Download(bundle, f"lethe-absence-{deletion_id}")


def receipt(deletion_id: uuid.UUID, caller: DeletionReader, resources: ResourcesDep) -> Download:
    owner, cosigned = visible_owner(caller), _has_witnesses(resources)
    with resources.database.reading() as session:
        bundle = bundles.find_receipt(session, deletion_id, owner, resources.signer, cosigned=cosigned)
    return Download(bundle, f"lethe-receipt-{deletion_id}")


def _has_witnesses(resources: Resources) -> bool:
    return bool(resources.settings.log_witnesses)


def _add_routes(path: str, find: Callable[..., Download], summary: str, description: str) -> None:
    """Add a route that chooses the format by extension, and one that chooses by `Accept`."""
    dependency = Depends(find)

    def by_extension(form: Form, download: Download = dependency) -> Response:
        return _respond(download, form)

    def by_accept(accept: Accept = "", download: Download = dependency) -> Response:
        return _respond(download, _accepted_form(accept))

    for route, endpoint in ((f"{path}.{{form}}", by_extension), (path, by_accept)):
        router.add_api_route(
            route, endpoint, summary=summary, description=description, response_class=Response, responses=RESPONSES
        )


_add_routes(
    "/certificates/{certificate_id}",
    certificate,
    "Download a certificate",
    "It can be verified offline with the list of keys alone. If it was replaced because a key was revoked, the header "
    "`Link` with `rel=successor-version` names the certificate that was issued in its stead.",
)
_add_routes(
    "/deletions/{deletion_id}/absence",
    absence,
    "Download a certificate of absence",
    "States that no model held the subject. Exists only for such deletions.",
)
_add_routes(
    "/deletions/{deletion_id}/receipt",
    receipt,
    "Download a receipt",
    "The receipt of the request, with the log entry that it promised.",
)


def _accepted_form(accept: str) -> Form:
    """Return the first supported format; JSON if there is none."""
    media_types = [media_type.split(";")[0].strip().lower() for media_type in accept.split(",")]
    formats = {media_type: form for form, media_type in MEDIA_TYPES.items()}
    return next((formats[media_type] for media_type in media_types if media_type in formats), Form.JSON)


def _respond(download: Download, form: Form) -> Response:
    disposition, bundle = "inline" if form is Form.HTML else "attachment", download.bundle
    headers = {"Content-Disposition": f'{disposition}; filename="{download.name}.{form}"', "Vary": "Accept"}
    if download.successor:
        headers["Link"] = f'<{download.successor}>; rel="successor-version"'
    if form is Form.JSON:
        return Response(bundle, media_type=MEDIA_TYPES[form], headers=headers)
    # Loading the printer takes a while, so only those who need it wait for it.
    from service import printing

    if form is Form.PDF:
        return Response(printing.render_pdf(bundle), media_type=MEDIA_TYPES[form], headers=headers)
    headers["Content-Security-Policy"] = printing.CONTENT_SECURITY_POLICY
    return Response(printing.render_html(bundle), media_type=MEDIA_TYPES[form], headers=headers)
