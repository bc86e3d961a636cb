"""Bundles for download: a signed statement with its place in the log, the same bytes each time."""

from __future__ import annotations

import uuid

from sqlalchemy.orm import Session

from service.store.certificates.statements import sign_receipt
from service.store.deletions.views import find_view
from service.store.errors import NotFound
from service.store.log.sequencing import find_logged_entry
from service.store.signing.statements import StatementSigner, write_bundle
from service.store.tables import Absence, Certificate, Deletion
from vocabulary.certificate import Bundle, LogProof


def find_certificate(session: Session, certificate_id: uuid.UUID, caller: str | None) -> str:
    """Return a certificate's bundle; with `caller` given, only if the deletion is theirs."""
    certificate = session.get(Certificate, certificate_id)
    if certificate is not None:
        deletion = session.get_one(Deletion, certificate.deletion_id)
        if caller is None or deletion.caller == caller:
            return _with_log_proof(session, certificate.bundle, certificate_id, "certificate.issued")
    raise NotFound(f"certificate {certificate_id} not found")


def find_absence(session: Session, deletion_id: uuid.UUID, caller: str | None) -> str:
    """Return the bundle of a certificate of absence; with `caller` given, only if the deletion is theirs."""
    absence, deletion = session.get(Absence, deletion_id), session.get(Deletion, deletion_id)
    if absence is None or deletion is None or (caller is not None and deletion.caller != caller):
        raise NotFound(f"certificate of absence for deletion {deletion_id} not found")
    return _with_log_proof(session, absence.bundle, deletion_id, "absence.certified")


def find_receipt(session: Session, deletion_id: uuid.UUID, caller: str | None, signer: StatementSigner) -> str:
    """Sign the receipt again. With the same key it is the one that intake returned, since its promise is the same."""
    view = find_view(session, deletion_id, caller)
    return _with_log_proof(session, sign_receipt(signer, view), deletion_id, "deletion.received")


def _with_log_proof(session: Session, signed: str, concerns: uuid.UUID, action: str) -> str:
    """Add the place in the log. Until the sequencer has placed its entry, a statement goes out without."""
    logged = find_logged_entry(session, concerns, action)
    if logged is None:
        return signed
    proof = [node.hex() for node in logged.proof]
    log = LogProof(checkpoint=logged.checkpoint, entry=logged.entry, index=logged.index, proof=proof)
    return write_bundle(Bundle.model_validate_json(signed).envelope, log)
