"""Certificates to download, and the public keys to check them with."""

from __future__ import annotations

import uuid

from fastapi import APIRouter, Response

from service.resources import DeletionReader, ResourcesDep, own_only
from service.schemas import PublicKey, PublicKeys
from service.store.certificates import find_bundle

router = APIRouter(prefix="/api/v1", tags=["certificates"])


@router.get(
    "/certificates/{certificate_id}",
    summary="Download a certificate",
    response_class=Response,
    responses={200: {"content": {"application/json": {}}, "description": "The signed bundle, for `lethe verify`."}},
)
def download_certificate(certificate_id: uuid.UUID, caller: DeletionReader, resources: ResourcesDep) -> Response:
    """Byte for byte as it was issued. Check it offline, with the public key and nothing else."""
    with resources.database.reading() as session:
        bundle = find_bundle(session, certificate_id, own_only(caller))
    name = f"lethe-certificate-{certificate_id}.json"
    return Response(
        bundle, media_type="application/json", headers={"Content-Disposition": f'attachment; filename="{name}"'}
    )


@router.get("/log/keys", response_model=PublicKeys, summary="The public keys, for anybody")
def public_keys(resources: ResourcesDep) -> PublicKeys:
    """Keep them where your certificates are: receipts, certificates and callbacks are checked with them."""
    signer = resources.signer
    return PublicKeys(keys=[PublicKey(keyid=signer.key_id, public_key_pem=signer.public_pem)])
