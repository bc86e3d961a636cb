"""Certificates issued again, because verifiers no longer accept the old ones: a key that signed them was revoked.

A new certificate states the same facts under the keys in use now, with its own date, and names the one that it
replaces. The old one stays available. A second request for the same certificate returns the first one's result.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store import audit
from service.store.canonical_json import canonical_json
from service.store.certificates.bundles import find_absence, find_certificate
from service.store.certificates.issuance import require_later
from service.store.certificates.statements import IssuedCertificate
from service.store.certificates.verification import Acceptance, log_and_verify, verify_each
from service.store.clock import current_time
from service.store.dialect import allow_long_work
from service.store.errors import NotFound, NotReplaceable
from service.store.log.sequencing import sequence_entries
from service.store.signing.keys import require_active
from service.store.signing.statements import StatementSigner, statement_digest, write_bundle
from service.store.states import SigningUse
from service.store.tables import Absence, Certificate, ReplacedAbsence, SigningKey
from vocabulary.certificate import Bundle, LogName, Replaced
from vocabulary.signed_model import write_timestamp

REASON = "A key that signed it is no longer trusted for its date, so verifiers do not accept it."
ACCEPTED = (
    "verifiers accept the certificate, or refuse it for another reason than a revoked key: only a certificate whose "
    "key was revoked is issued again; `lethe key list` shows all keys"
)


@dataclass(frozen=True)
class Reissuer:
    """The keys in use now, the verifier keys of the configured witnesses, and who asked for the new certificates."""

    signer: StatementSigner
    witnesses: Sequence[str]
    actor: str

    def read_acceptance(self, session: Session) -> Acceptance:
        return Acceptance.read(session, self.signer.origin, self.witnesses)


@dataclass(frozen=True)
class Affected:
    """Certificates that verifiers refuse because of a revoked key."""

    certificate_ids: Sequence[uuid.UUID]
    absence_ids: Sequence[uuid.UUID]
    """Deletions whose certificate of absence is refused."""


def find_affected(session: Session, key_id: str, reissuer: Reissuer) -> Affected:
    """Find what a revoked key signed and verifiers refuse. What was issued again is left out."""
    key = session.get(SigningKey, key_id)
    if key is None or key.revoked_at is None:
        raise NotFound("no revoked key has this id; `lethe key list` shows all keys")
    # A bundle names the key of its statement. Checkpoints are shared, so for a log key all bundles are tried.
    signed = f'%"keyid":"{key_id}"%' if key.use == SigningUse.STATEMENTS else "%"
    certificates = select(Certificate.id).where(Certificate.replaced_by.is_(None), Certificate.bundle.like(signed))
    absences = select(Absence.deletion_id).where(Absence.bundle.like(signed))
    acceptance, cosigned = reissuer.read_acceptance(session), bool(reissuer.witnesses)
    return Affected(
        [
            certificate_id
            for certificate_id in session.scalars(certificates).all()
            if acceptance.ended(find_certificate(session, certificate_id, None, cosigned=cosigned))
        ],
        [
            deletion_id
            for deletion_id in session.scalars(absences).all()
            if acceptance.ended(find_absence(session, deletion_id, None, cosigned=cosigned))
        ],
    )


def reissue_certificates(
    session: Session, certificate_ids: Sequence[uuid.UUID], reissuer: Reissuer
) -> Mapping[uuid.UUID, uuid.UUID]:
    """Return the ids of the new certificates by those of the old ones. Raises NotReplaceable if one is accepted."""
    allow_long_work(session)
    require_active(session, reissuer.signer)
    query = select(Certificate).where(Certificate.id.in_(certificate_ids)).order_by(Certificate.id).with_for_update()
    rows = session.scalars(query).all()
    if len(rows) < len(set(certificate_ids)):
        raise NotFound(f"certificate {next(iter(set(certificate_ids) - {row.id for row in rows}))} not found")
    acceptance, issued_at = reissuer.read_acceptance(session), current_time(session)
    issued = []
    for old in (row for row in rows if row.replaced_by is None):
        if not acceptance.ended(find_certificate(session, old.id, None, cosigned=bool(reissuer.witnesses))):
            raise NotReplaceable(ACCEPTED)
        issued.append(_replace_certificate(session, old, reissuer, issued_at))
    if issued:
        log_and_verify(session, reissuer.signer, issued)
    return {row.id: row.replaced_by for row in rows if row.replaced_by is not None}


def reissue_absence(session: Session, deletion_id: uuid.UUID, reissuer: Reissuer) -> str:
    """Return the digest of the statement of absence that verifiers accept, signed again if need be.

    Raises NotReplaceable if they accept the one that was issued first.
    """
    require_active(session, reissuer.signer)
    absence = session.get(Absence, deletion_id, with_for_update=True)
    if absence is None:
        raise NotFound(f"certificate of absence for deletion {deletion_id} not found")
    acceptance = reissuer.read_acceptance(session)
    if acceptance.ended(find_absence(session, deletion_id, None, cosigned=bool(reissuer.witnesses))):
        _replace_absence(session, absence, reissuer, current_time(session))
        sequence_entries(session, reissuer.signer)
        verify_each([find_absence(session, deletion_id, None)], acceptance.keys)
    elif "replaces" not in _open_statement(absence.bundle)["predicate"]:
        raise NotReplaceable(ACCEPTED)
    return statement_digest(absence.bundle)


def _replace_certificate(
    session: Session, old: Certificate, reissuer: Reissuer, issued_at: datetime
) -> IssuedCertificate:
    certificate_id = uuid.uuid4()
    statement = _state_again(old.bundle, str(old.id), reissuer.signer, issued_at)
    statement["predicate"]["certificate"] = str(certificate_id)
    issued = _sign(certificate_id, statement, reissuer.signer)
    old.replaced_by = certificate_id
    session.flush()  # the deletion has one certificate that is not replaced, at any time
    columns = ("deletion_id", "model_id", "version_id", "batch_id", "level", "epsilon")
    shared = {name: getattr(old, name) for name in columns}
    session.add(Certificate(id=certificate_id, issued_at=issued_at, bundle=issued.bundle, **shared))
    details = {"deletion": str(old.deletion_id), "statement": issued.statement}
    audit.record(session, reissuer.actor, "certificate.issued", certificate_id, **details)
    audit.record(session, reissuer.actor, "certificate.reissued", old.id, successor=str(certificate_id))
    return issued


def _replace_absence(session: Session, absence: Absence, reissuer: Reissuer, issued_at: datetime) -> None:
    statement = _state_again(absence.bundle, str(absence.deletion_id), reissuer.signer, issued_at)
    issued, replaced = _sign(absence.deletion_id, statement, reissuer.signer), statement_digest(absence.bundle)
    session.add(
        ReplacedAbsence(
            deletion_id=absence.deletion_id, statement=replaced, issued_at=absence.issued_at, bundle=absence.bundle
        )
    )
    absence.bundle, absence.issued_at = issued.bundle, issued_at
    audit.record(
        session, reissuer.actor, "absence.certified", absence.deletion_id, statement=issued.statement, replaces=replaced
    )


def _state_again(bundle: str, certificate: str, signer: StatementSigner, issued_at: datetime) -> dict[str, Any]:
    """Return the statement of a bundle with another date and the name of what it replaces."""
    statement = _open_statement(bundle)
    predicate = statement["predicate"]
    require_later(issued_at, [datetime.fromisoformat(predicate["received_at"])])
    replaced = Replaced(certificate=certificate, statement=statement_digest(bundle), reason=REASON)
    dated = {"issued_at": write_timestamp(issued_at), "log": LogName(origin=signer.origin).to_dict()}
    return {**statement, "predicate": {**predicate, **dated, "replaces": replaced.to_dict()}}


def _open_statement(bundle: str) -> dict[str, Any]:
    statement: dict[str, Any] = json.loads(Bundle.model_validate_json(bundle).envelope.decode_payload())
    return statement


def _sign(certificate_id: uuid.UUID, statement: Mapping[str, Any], signer: StatementSigner) -> IssuedCertificate:
    payload = canonical_json(statement)
    digest = hashlib.sha256(payload).hexdigest()
    return IssuedCertificate(certificate_id, write_bundle(signer.sign(payload)), digest)
