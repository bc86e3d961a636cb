"""Receipts and certificates to download: for machines, on paper, and in a browser."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Response

from service.resources import DeletionReader, ResourcesDep, own_only
from service.store.certificates import bundles

router = APIRouter(prefix="/api/v1", tags=["certificates"])


class Form(StrEnum):
    """By the extension of the path, or by `Accept`."""

    JSON = "json"
    PDF = "pdf"
    HTML = "html"


MEDIA_TYPES = {Form.JSON: "application/json", Form.PDF: "application/pdf", Form.HTML: "text/html"}
ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The signed bundle for `lethe verify`; with `Accept: application/pdf` or `text/html`, or the "
        "extension `.pdf` or `.html`, the same facts to print and to read.",
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


def certificate(certificate_id: uuid.UUID, caller: DeletionReader, resources: ResourcesDep) -> Download:
    with resources.database.reading() as session:
        found = bundles.find_certificate(session, certificate_id, own_only(caller))
    return Download(found, f"lethe-certificate-{certificate_id}")


def absence(deletion_id: uuid.UUID, caller: DeletionReader, resources: ResourcesDep) -> Download:
    with resources.database.reading() as session:
        found = bundles.find_absence(session, deletion_id, own_only(caller))
    return Download(found, f"lethe-absence-{deletion_id}")


def receipt(deletion_id: uuid.UUID, caller: DeletionReader, resources: ResourcesDep) -> Download:
    with resources.database.reading() as session:
        found = bundles.find_receipt(session, deletion_id, own_only(caller), resources.signer)
    return Download(found, f"lethe-receipt-{deletion_id}")


def _add(path: str, find: Callable[..., Download], summary: str, description: str) -> None:
    """By extension, and without one by what the caller accepts."""
    wanted = Depends(find)

    def by_extension(form: Form, found: Download = wanted) -> Response:
        return _answer(found, form)

    def by_accept(accept: Accept = "", found: Download = wanted) -> Response:
        return _answer(found, _wanted(accept))

    for route, answer in ((f"{path}.{{form}}", by_extension), (path, by_accept)):
        router.add_api_route(
            route, answer, summary=summary, description=description, response_class=Response, responses=ANSWERS
        )


_add(
    "/certificates/{certificate_id}",
    certificate,
    "Download a certificate",
    "The same to the byte each time. Check it offline, with the list of keys and nothing else.",
)
_add(
    "/deletions/{deletion_id}/absence",
    absence,
    "The certificate that no model held the subject",
    "Only for deletions that found nobody.",
)
_add(
    "/deletions/{deletion_id}/receipt",
    receipt,
    "Download a receipt",
    "What was given at intake, with the place in the log that it promised.",
)


def _wanted(accept: str) -> Form:
    """The first that is named; JSON if none is."""
    offers = [offer.split(";")[0].strip().lower() for offer in accept.split(",")]
    forms = {media_type: form for form, media_type in MEDIA_TYPES.items()}
    return next((forms[offer] for offer in offers if offer in forms), Form.JSON)


def _answer(found: Download, form: Form) -> Response:
    shown, bundle = "inline" if form is Form.HTML else "attachment", found.bundle
    headers = {"Content-Disposition": f'{shown}; filename="{found.name}.{form}"', "Vary": "Accept"}
    if form is Form.JSON:
        return Response(bundle, media_type=MEDIA_TYPES[form], headers=headers)
    # Only who wants to read or print it waits for the printer to be loaded.
    from service import printing

    if form is Form.PDF:
        return Response(printing.render_pdf(bundle), media_type=MEDIA_TYPES[form], headers=headers)
    headers["Content-Security-Policy"] = printing.CONTENT_SECURITY_POLICY
    return Response(printing.render_html(bundle), media_type=MEDIA_TYPES[form], headers=headers)
