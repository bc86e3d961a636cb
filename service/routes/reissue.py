"""Certificates issued again after a key was revoked."""

from __future__ import annotations

import uuid

from fastapi import APIRouter

from service.resources import Operator, Resources, ResourcesDep
from service.schemas.reissue import ReissuedAbsence, ReissuedCertificate
from service.store.access.tokens import Caller
from service.store.certificates.reissue import Reissuer, reissue_absence, reissue_certificates

router = APIRouter(prefix="/api/v1", tags=["certificates"])


@router.post("/certificates/{certificate_id}/reissue", summary="Issue a certificate again")
def reissue_one(certificate_id: uuid.UUID, caller: Operator, resources: ResourcesDep) -> ReissuedCertificate:
    """If a key that signed it was revoked, so that verifiers no longer accept it. Otherwise: status 409.

    The new certificate states the same facts under the keys in use now, and names the one that it replaces, which stays
    available. A second request returns the same new certificate.
    """
    with resources.database.writing() as session:
        successors = reissue_certificates(session, [certificate_id], _reissuer(resources, caller))
    new_id = successors[certificate_id]
    return ReissuedCertificate(id=new_id, replaces=certificate_id, certificate=f"/api/v1/certificates/{new_id}")


@router.post("/deletions/{deletion_id}/absence/reissue", summary="Issue a certificate of absence again")
def reissue_one_absence(deletion_id: uuid.UUID, caller: Operator, resources: ResourcesDep) -> ReissuedAbsence:
    """If a key that signed it was revoked, so that verifiers no longer accept it. Otherwise: status 409.

    The old one stays available under `?statement=`, with the digest that the new one names.
    """
    with resources.database.writing() as session:
        statement = reissue_absence(session, deletion_id, _reissuer(resources, caller))
    return ReissuedAbsence(statement=statement, absence=f"/api/v1/deletions/{deletion_id}/absence")


def _reissuer(resources: Resources, caller: Caller) -> Reissuer:
    witnesses = [witness.verifier_key for witness in resources.settings.log_witnesses]
    return Reissuer(resources.signer, witnesses, caller.name)
