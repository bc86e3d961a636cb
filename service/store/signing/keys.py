"""The keys that sign, and those that once did: their public halves, kept for ever.

A key is added when it is first used, retired when no process uses it any more, and revoked when somebody else may have
had it. What a key signed before it was retired or revoked stays good, so none is ever removed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.settings import ConfigurationError, Settings
from service.store import audit
from service.store.database import Database
from service.store.dialect import insert
from service.store.errors import NotFound
from service.store.signing.statements import StatementSigner
from service.store.tables import SigningKey, now


def open_signer(settings: Settings, database: Database) -> StatementSigner:
    """The signer of this process, its key on the list. A key that may sign no more stops the start."""
    try:
        signer = StatementSigner(settings.signing_key_bytes(), settings.origin)
        _refuse_ended(_listed(database, signer))
    except Exception:
        database.close()  # who opens both at once is left with neither
        raise
    return signer


def add(session: Session, public_key: bytes, actor: str) -> SigningKey:
    """Put a key on the list. Of two processes that start with it at once, one does."""
    key_id = hashlib.sha256(public_key).hexdigest()
    row = {"key_id": key_id, "public_key": public_key, "created_at": now()}
    added = insert(session, SigningKey).values(row).on_conflict_do_nothing().returning(SigningKey.key_id)
    if session.execute(added).first() is not None:
        audit.record(session, actor, "key.added", key_id, public_key=public_key.hex())
    return session.scalars(select(SigningKey).where(SigningKey.key_id == key_id)).one()


def rotate(session: Session, old: bytes, new: bytes, actor: str) -> tuple[str, str]:
    """Put the successor of a key on the list; both are good until the old one is retired. Returns their ids."""
    # The old one may be missing, where it signed before there was a list.
    old_id, new_id = (add(session, key, actor).key_id for key in (old, new))
    audit.record(session, actor, "key.rotated", old_id, successor=new_id)
    return old_id, new_id


def retire(session: Session, key_id: str, actor: str) -> None:
    """From now on what this key signs is refused; what it signed stays good."""
    key = session.get(SigningKey, key_id, with_for_update=True)
    if key is None or key.retired_at is not None or key.revoked_at is not None:
        raise NotFound("no key that is in use has this id; `lethe key list` shows them")
    key.retired_at = now()
    audit.record(session, actor, "key.retired", key_id)


def revoke(session: Session, key_id: str, at: datetime, reason: str, actor: str) -> None:
    """What this key signed at `at` or later is refused. The time can be moved to an earlier one, never to a later."""
    key = session.get(SigningKey, key_id, with_for_update=True)
    if key is None or (key.revoked_at is not None and key.revoked_at <= at):
        raise NotFound("no key that is trusted at that time has this id; `lethe key list` shows them")
    key.revoked_at, key.reason = at, reason
    audit.record(session, actor, "key.revoked", key_id, at=at.isoformat(), reason=reason)


def all_keys(session: Session) -> Sequence[SigningKey]:
    """The newest first."""
    return session.scalars(select(SigningKey).order_by(SigningKey.created_at.desc(), SigningKey.key_id)).all()


def keys_for(session: Session, signer: StatementSigner) -> Sequence[SigningKey]:
    """All keys, that of the signer first. It is there even where the list was lost under a running process."""
    keys = all_keys(session)
    own = [key for key in keys if key.key_id == signer.key_id]
    unlisted = SigningKey(key_id=signer.key_id, public_key=signer.public_key, created_at=now())
    return [*(own or [unlisted]), *(key for key in keys if key.key_id != signer.key_id)]


def public_pem(key: SigningKey) -> str:
    public = Ed25519PublicKey.from_public_bytes(key.public_key)
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return pem.decode()


def _listed(database: Database, signer: StatementSigner) -> SigningKey:
    with database.reading() as session:
        known = session.get(SigningKey, signer.key_id)
    if known is not None:
        return known
    with database.writing() as session:
        return add(session, signer.public_key, actor="lethe")


def _refuse_ended(key: SigningKey) -> None:
    if key.retired_at is None and key.revoked_at is None:
        return
    ended = "revoked" if key.revoked_at else "retired"
    raise ConfigurationError(
        f"the signing key {key.key_id[:8]} was {ended}, so nobody would believe what it signs: "
        "run `lethe key rotate` to make another, or configure the one that followed it."
    )
