"""What people download: a signed statement with its place in the log, byte for byte the same each time."""

from __future__ import annotations

import json
import uuid

from sqlalchemy.orm import Session

from service.store.certificates.statements import sign_receipt
from service.store.deletions import lifecycle as deletions
from service.store.errors import NotFound
from service.store.log.sequencing import place_of
from service.store.signing.statements import StatementSigner, bundle
from service.store.tables import Absence, Certificate, Deletion


def find_certificate(session: Session, certificate_id: uuid.UUID, caller: str | None) -> str:
    """With `caller` given, only if the deletion is theirs."""
    certificate = session.get(Certificate, certificate_id)
    if certificate is not None:
        deletion = session.get_one(Deletion, certificate.deletion_id)
        if caller is None or deletion.caller == caller:
            return _logged(session, certificate.bundle, certificate_id, "certificate.issued")
    raise NotFound(f"there is no certificate {certificate_id}")


def find_absence(session: Session, deletion_id: uuid.UUID, caller: str | None) -> str:
    """The certificate of absence; with `caller` given, only if the deletion is theirs."""
    absence, deletion = session.get(Absence, deletion_id), session.get(Deletion, deletion_id)
    if absence is None or deletion is None or (caller is not None and deletion.caller != caller):
        raise NotFound(f"there is no certificate of absence for deletion {deletion_id}")
    return _logged(session, absence.bundle, deletion_id, "absence.certified")


def find_receipt(session: Session, deletion_id: uuid.UUID, caller: str | None, signer: StatementSigner) -> str:
    """Signed anew, with what was promised kept: by the same key it is the receipt that was given at intake."""
    view = deletions.find(session, deletion_id, caller)
    return _logged(session, sign_receipt(signer, view), deletion_id, "deletion.received")


def _logged(session: Session, signed: str, concerns: uuid.UUID, action: str) -> str:
    """Until the sequencer has placed its entry, a statement goes out by itself."""
    place = place_of(session, concerns, action)
    if place is None:
        return signed
    proof = [one.hex() for one in place.proof]
    log = {"checkpoint": place.checkpoint, "entry": place.entry, "index": place.index, "proof": proof}
    return bundle(json.loads(signed)["envelope"], log)
