"""Bundles for download: a signed statement with its place in the log.

The place is shown by the first checkpoint that covers the entry; if witnesses are configured, by the first one that
they cosigned, as soon as there is one. Apart from that a bundle has the same bytes each time.
"""

from __future__ import annotations

import uuid

from sqlalchemy.orm import Session

from service.store.certificates.statements import sign_receipt
from service.store.deletions.views import find_view
from service.store.errors import NotFound
from service.store.log.sequencing import LoggedEntry, find_logged_entry
from service.store.signing.keys import require_active
from service.store.signing.statements import StatementSigner, statement_digest, write_bundle
from service.store.tables import Absence, Certificate, Deletion, ReplacedAbsence
from vocabulary.certificate import Bundle, LogProof


def find_certificate(session: Session, certificate_id: uuid.UUID, caller: str | None, *, cosigned: bool = False) -> str:
    """Return a certificate's bundle, replaced or not; with `caller` given, only if the deletion is theirs."""
    certificate = _find_certificate(session, certificate_id, caller)
    return _with_log_proof(session, certificate.bundle, certificate_id, "certificate.issued", cosigned)


def find_successor(session: Session, certificate_id: uuid.UUID, caller: str | None) -> uuid.UUID | None:
    """Return the certificate that was issued in its stead, if there is one."""
    return _find_certificate(session, certificate_id, caller).replaced_by


def find_absence(
    session: Session,
    deletion_id: uuid.UUID,
    caller: str | None,
    statement: str | None = None,
    *,
    cosigned: bool = False,
) -> str:
    """Return the bundle of a certificate of absence; with `caller` given, only if the deletion is theirs.

    With `statement`, the one whose statement has this digest, replaced or not.
    """
    absence, deletion = session.get(Absence, deletion_id), session.get(Deletion, deletion_id)
    if absence is None or deletion is None or caller not in (None, deletion.caller):
        raise NotFound(f"certificate of absence for deletion {deletion_id} not found")
    bundle = absence.bundle
    if statement not in (None, statement_digest(bundle)):
        replaced = session.get(ReplacedAbsence, (deletion_id, statement))
        if replaced is None:
            raise NotFound(f"certificate of absence for deletion {deletion_id} with this statement not found")
        bundle = replaced.bundle
    return _with_log_proof(session, bundle, deletion_id, "absence.certified", cosigned)


def find_receipt(
    session: Session, deletion_id: uuid.UUID, caller: str | None, signer: StatementSigner, *, cosigned: bool = False
) -> str:
    """Sign the receipt again. With the same key it is the one that intake returned, since its promise is the same."""
    require_active(session, signer)
    signed = sign_receipt(signer, find_view(session, deletion_id, caller))
    logged = find_logged_entry(session, deletion_id, "deletion.received", cosigned=cosigned)
    return signed if logged is None else add_log_proof(signed, logged)


def add_log_proof(signed: str, logged: LoggedEntry) -> str:
    """Add the place in the log to a bundle."""
    return write_bundle(Bundle.model_validate_json(signed).envelope, log_member(logged))


def log_member(logged: LoggedEntry) -> LogProof:
    """Return the member `log` of a bundle."""
    proof = [node.hex() for node in logged.proof]
    return LogProof(checkpoint=logged.checkpoint, entry=logged.entry, index=logged.index, proof=proof)


def _find_certificate(session: Session, certificate_id: uuid.UUID, caller: str | None) -> Certificate:
    certificate = session.get(Certificate, certificate_id)
    if certificate is not None:
        deletion = session.get_one(Deletion, certificate.deletion_id)
        if caller in (None, deletion.caller):
            return certificate
    raise NotFound(f"certificate {certificate_id} not found")


def _with_log_proof(session: Session, signed: str, concerns: uuid.UUID, action: str, cosigned: bool) -> str:
    """Add the place in the log. Until the sequencer has placed its entry, a statement goes out without."""
    logged = find_logged_entry(session, concerns, action, statement_digest(signed), cosigned=cosigned)
    return signed if logged is None else add_log_proof(signed, logged)
