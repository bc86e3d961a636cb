"""Certificates are verified before they are published, by the verifier that auditors use.

The one module of the service that imports `lethe`: `lethe.verify` needs nothing but cryptography, and shares no code
with the signer. What it rejects is not published, so that nothing is erased for a certificate that nobody can verify.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy.orm import Session

from lethe.verify import BatchVerifier, Rejected, verify
from service.store.canonical_json import canonical_json
from service.store.certificates.bundles import add_log_proof, log_member
from service.store.certificates.statements import IssuedCertificate
from service.store.dialect import stay_active
from service.store.errors import CertificateRejected
from service.store.log.leaves import format_timestamp
from service.store.log.sequencing import find_logged_entries, sequence_entries
from service.store.signing.keys import all_keys, public_pem
from service.store.signing.statements import StatementSigner
from service.store.tables import SigningKey


def log_and_verify(
    session: Session, signer: StatementSigner, certificates: Collection[IssuedCertificate]
) -> Sequence[uuid.UUID]:
    """Sign a checkpoint that covers all entries, and verify the certificates with their places in it.

    Returns their ids. Raises CertificateRejected.
    """
    keys = write_key_list(signer.origin, all_keys(session))
    issued = {str(certificate.id): certificate.bundle for certificate in certificates}
    with _rejections():
        batch = BatchVerifier(keys)
        checked = {
            name: batch.check_statement(bundle.encode()) for name, bundle in stay_active(session, issued.items())
        }
    sequence_entries(session, signer)  # only now: others wait for the log until this transaction ends
    logged = find_logged_entries(session, issued, "certificate.issued")
    with _rejections():
        for name, statement in stay_active(session, checked.items()):
            batch.check_place(statement, log_member(logged[name]).to_dict())
    whole = list(issued)[:1] + list(issued)[1:][-1:]  # the first and the last also as they will be downloaded
    verify_each((add_log_proof(issued[name], logged[name]) for name in whole), keys)
    return [certificate.id for certificate in certificates]


def verify_statements(session: Session, origin: str, bundles: Iterable[str]) -> None:
    """Verify signatures and contents of bundles whose entries the log gets later. Raises CertificateRejected."""
    with _rejections():
        batch = BatchVerifier(write_key_list(origin, all_keys(session)))
        for bundle in stay_active(session, bundles):
            batch.check_statement(bundle.encode())


def verify_each(bundles: Iterable[str], keys: bytes) -> None:
    """Verify bundles with a list of keys. Raises CertificateRejected."""
    with _rejections():
        for bundle in bundles:
            verify(bundle.encode(), keys)


def find_problem(bundle: str, keys: bytes) -> str | None:
    """Return why the verifier does not accept a bundle; None if it does."""
    try:
        verify(bundle.encode(), keys)
    except Rejected as reason:
        return str(reason)
    return None


@dataclass(frozen=True)
class Acceptance:
    """The list of keys as it is, and as it would be had no key been retired or revoked."""

    keys: bytes
    keys_without_revocations: bytes

    @classmethod
    def read(cls, session: Session, origin: str, witnesses: Sequence[str]) -> Acceptance:
        keys = all_keys(session)
        unrevoked = [SigningKey(key_id=key.key_id, public_key=key.public_key, use=key.use) for key in keys]
        return cls(write_key_list(origin, keys, witnesses), write_key_list(origin, unrevoked, witnesses))

    def ended(self, bundle: str) -> bool:
        """Whether the verifier does not accept the bundle any more, because of the dates of keys alone."""
        is_accepted = find_problem(bundle, self.keys) is None
        return not is_accepted and find_problem(bundle, self.keys_without_revocations) is None


def write_key_list(origin: str, keys: Iterable[SigningKey], witnesses: Sequence[str] = ()) -> bytes:
    """Return the list of keys as /api/v1/log/keys publishes it, reduced to what the verifier reads."""
    return canonical_json({"origin": origin, "keys": [_key_entry(key) for key in keys], "witnesses": list(witnesses)})


@contextmanager
def _rejections() -> Iterator[None]:
    try:
        yield
    except Rejected as reason:
        raise CertificateRejected(
            f"the verifier rejects a certificate that was about to be published: {reason}. Nothing was published or "
            "erased; it is retried automatically a few times. If it persists, report it."
        ) from None


def _key_entry(key: SigningKey) -> dict[str, str | None]:
    dates = {"retired_at": key.retired_at, "revoked_at": key.revoked_at}
    return {
        "keyid": key.key_id,
        "public_key_pem": public_pem(key),
        "use": key.use,
        **{name: None if date is None else format_timestamp(date) for name, date in dates.items()},
    }
