"""Public keys of all signing keys, current and former.

A key is added when it is first used, retired when no process uses it any more, and revoked if it may have leaked.
What a key signed before it was retired or revoked stays valid, so no key is ever removed.
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
    """Return the signer of this process and add its key. Raise ConfigurationError if it was retired or revoked."""
    try:
        signer = StatementSigner(settings.signing_key_bytes(), settings.origin)
        _require_active(_ensure_added(database, signer))
    except Exception:
        database.close()  # callers open both at once, and are left with neither
        raise
    return signer


def add(session: Session, public_key: bytes, actor: str) -> SigningKey:
    """Add a key unless it is there. Of two processes that start at once, one adds it."""
    key_id = hashlib.sha256(public_key).hexdigest()
    row = {"key_id": key_id, "public_key": public_key, "created_at": now()}
    added = insert(session, SigningKey).values(row).on_conflict_do_nothing().returning(SigningKey.key_id)
    if session.execute(added).first() is not None:
        audit.record(session, actor, "key.added", key_id, public_key=public_key.hex())
    return session.scalars(select(SigningKey).where(SigningKey.key_id == key_id)).one()


def rotate(session: Session, old: bytes, new: bytes, actor: str) -> tuple[str, str]:
    """Add the successor of a key and return both ids. Both are valid until the old one is retired."""
    # The old key may be missing if it signed before keys were listed.
    old_id, new_id = (add(session, key, actor).key_id for key in (old, new))
    audit.record(session, actor, "key.rotated", old_id, successor=new_id)
    return old_id, new_id


def retire(session: Session, key_id: str, actor: str) -> None:
    """Refuse what this key signs from now on. What it signed before stays valid."""
    key = session.get(SigningKey, key_id, with_for_update=True)
    if key is None or key.retired_at is not None or key.revoked_at is not None:
        raise NotFound("no active key has this id; `lethe key list` shows all keys")
    key.retired_at = now()
    audit.record(session, actor, "key.retired", key_id)


def revoke(session: Session, key_id: str, at: datetime, reason: str, actor: str) -> None:
    """Refuse what this key signed at `at` or later. The time can be moved back, never forward."""
    key = session.get(SigningKey, key_id, with_for_update=True)
    if key is None or (key.revoked_at is not None and key.revoked_at <= at):
        raise NotFound("no key with this id is trusted at that time; `lethe key list` shows all keys")
    key.revoked_at, key.reason = at, reason
    audit.record(session, actor, "key.revoked", key_id, at=at.isoformat(), reason=reason)


def all_keys(session: Session) -> Sequence[SigningKey]:
    """Return all keys, newest first."""
    return session.scalars(select(SigningKey).order_by(SigningKey.created_at.desc(), SigningKey.key_id)).all()


def keys_for(session: Session, signer: StatementSigner) -> Sequence[SigningKey]:
    """Return all keys, the signer's first. It is included even if its row was lost under a running process."""
    keys = all_keys(session)
    own = [key for key in keys if key.key_id == signer.key_id]
    unlisted = SigningKey(key_id=signer.key_id, public_key=signer.public_key, created_at=now())
    return [*(own or [unlisted]), *(key for key in keys if key.key_id != signer.key_id)]


def public_pem(key: SigningKey) -> str:
    public = Ed25519PublicKey.from_public_bytes(key.public_key)
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return pem.decode()


def _ensure_added(database: Database, signer: StatementSigner) -> SigningKey:
    with database.reading() as session:
        key = session.get(SigningKey, signer.key_id)
    if key is not None:
        return key
    with database.writing() as session:
        return add(session, signer.public_key, actor="lethe")


def _require_active(key: SigningKey) -> None:
    if key.retired_at is None and key.revoked_at is None:
        return
    status = "revoked" if key.revoked_at else "retired"
    raise ConfigurationError(
        f"the signing key {key.key_id[:8]} was {status}, so verifiers reject what it signs: "
        "run `lethe key rotate` to create another, or configure its successor."
    )
