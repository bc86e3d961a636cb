"""The public keys to check certificates with."""

from __future__ import annotations

from fastapi import APIRouter

from service.resources import ResourcesDep
from service.schemas import PublicKeys, public_keys_out
from service.store.keys import keys_for

router = APIRouter(prefix="/api/v1", tags=["certificates"])


@router.get("/log/keys", response_model=PublicKeys, summary="The public keys, for anybody")
def public_keys(resources: ResourcesDep) -> PublicKeys:
    """Keep them where your certificates are: receipts, certificates and callbacks are checked with them.

    Former keys stay listed, with the time from which on nothing that they signed is to be believed.
    """
    with resources.database.reading() as session:
        return public_keys_out(resources.settings, keys_for(session, resources.signer))
