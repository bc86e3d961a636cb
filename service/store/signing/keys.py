"""Public keys of all signing keys, current and former, and whether those of a process may still sign.

A key is added when it is first used, retired when no process uses it any more, and revoked if it may have leaked.
What a key signed before it was retired or revoked stays valid, so no key is ever removed.

Whoever signs holds a shared lock until its transaction ends; whoever retires or revokes a key holds it alone. So a key
that ended signs nothing after that time, in whichever process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime

from sqlalchemy import or_, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.settings import ConfigurationError, Settings
from service.store import audit
from service.store.clock import current_time
from service.store.database import Database
from service.store.database_errors import is_lock_timeout
from service.store.dialect import insert, lock, lock_shared, wait_for_locks
from service.store.errors import KeyInactive, NotFound
from service.store.signing.statements import StatementSigner, key_id_of, write_pem
from service.store.states import SigningUse
from service.store.tables import SigningKey

LOCK, ADDING = "lethe-keys", "lethe-key-added"
"""Names of locks: of the keys that sign, and of additions to the list, for which nobody who signs has to wait."""
LOCK_SECONDS, TRY_SECONDS, PAUSE_SECONDS = 0.5, 60.0, 0.5
"""Intake waits for at most a second; so the end of a key lets it through before that."""
_ENDS = text(  # as text: each intake asks, and building the query takes longer than running it
    "SELECT key_id, retired_at IS NOT NULL, revoked_at IS NOT NULL FROM signing_keys WHERE key_id IN (:signing, :log)"
)
WORDS = {SigningUse.STATEMENTS: "signing key", SigningUse.LOG: "log key"}


def configured_signer(settings: Settings) -> StatementSigner:
    """Return the signer with the configured keys, whether or not they may sign."""
    signer = StatementSigner(settings.signing_key_bytes(), settings.log_key_bytes(), settings.origin)
    if signer.key_id == signer.log_key_id:
        raise ConfigurationError(
            f"{settings.log_key_source.variable} supplies the signing key: run `lethe secrets` to create a separate "
            "log key, so that whoever has one of them cannot forge the other's signatures."
        )
    return signer


def open_signer(settings: Settings, database: Database) -> StatementSigner:
    """Return the signer of this process. The first key of each use is listed; another must be listed already.

    Raises ConfigurationError if a key is not listed, or was retired or revoked.
    """
    try:
        signer = configured_signer(settings)
        with database.reading() as session:
            is_listed = not _unlisted(session, signer)
        if not is_listed:
            with database.writing() as session:
                _list_first_keys(session, signer, settings)
        with database.reading() as session:
            problem = find_inactive(session, signer)
    except Exception:
        database.close()  # callers open both at once, and are left with neither
        raise
    if problem is not None:
        database.close()
        raise ConfigurationError(problem)
    return signer


def require_active(session: Session, signer: StatementSigner) -> None:
    """Hold the list of keys as it is until the transaction ends. Raises KeyInactive unless both keys may sign."""
    lock_shared(session, LOCK)
    problem = find_inactive(session, signer)
    if problem is not None:
        raise KeyInactive(problem)


def find_inactive(session: Session, signer: StatementSigner) -> str | None:
    """Return why the signer may not sign, and what to do; None if both of its keys are listed and active."""
    rows = session.execute(_ENDS, {"signing": signer.key_id, "log": signer.log_key_id})
    ends = {key_id: (is_retired, is_revoked) for key_id, is_retired, is_revoked in rows}
    for use, public_key in signer.public_keys.items():
        key_id = key_id_of(public_key)
        if key_id not in ends:
            return _describe_unlisted(use, key_id)
        is_retired, is_revoked = ends[key_id]
        if is_retired or is_revoked:
            status = "revoked" if is_revoked else "retired"
            return (
                f"the {WORDS[use]} {key_id[:8]} was {status}, so verifiers reject what it signs: run `lethe key rotate "
                f"--use {use}` unless it has a successor, configure the successor, and restart."
            )
    return None


def add(session: Session, public_key: bytes, use: SigningUse, actor: str, reason: str | None = None) -> str:
    """Add a key unless it is listed, and return its id. Of two processes that start at once, one adds it."""
    key_id = key_id_of(public_key)
    row = {"key_id": key_id, "public_key": public_key, "use": use, "created_at": current_time(session)}
    added = insert(session, SigningKey).values(row).on_conflict_do_nothing().returning(SigningKey.key_id)
    if session.execute(added).first() is not None:
        details = {"reason": reason} if reason else {}
        audit.record(session, actor, "key.added", key_id, public_key=public_key.hex(), use=use, **details)
    return key_id


def add_configured(session: Session, signer: StatementSigner, use: SigningUse, reason: str, actor: str) -> str:
    """Add the signer's key of this use although others are active: theirs was lost. Return its id."""
    lock(session, ADDING)
    public_key = signer.public_keys[use]
    if session.get(SigningKey, key_id_of(public_key)) is not None:
        raise NotFound("the configured key is listed already; `lethe key list` shows all keys")
    return add(session, public_key, use, actor, reason)


def rotate(session: Session, old: bytes, new: bytes, use: SigningUse, actor: str) -> tuple[str, str]:
    """Add the successor of a key and return both ids. Both are valid until the old one is retired."""
    lock(session, ADDING)
    old_id = key_id_of(old)
    if session.get(SigningKey, old_id) is None:
        if _has_active(session, use):
            raise NotFound(_describe_unlisted(use, old_id))
        add(session, old, use, actor)
    new_id = add(session, new, use, actor)
    audit.record(session, actor, "key.rotated", old_id, successor=new_id)
    return old_id, new_id


def end_key(database: Database, end: Callable[[Session], None]) -> None:
    """Retire or revoke a key in its own transaction, once those who sign have finished.

    While it waits, nobody else can begin to sign. So it gives way twice a second: a long publication may be running.
    """
    deadline = time.monotonic() + TRY_SECONDS
    while True:
        try:
            with database.writing() as session:
                wait_for_locks(session, LOCK_SECONDS)
                return end(session)
        except OperationalError as error:
            if not is_lock_timeout(error.orig) or time.monotonic() > deadline:
                raise
        time.sleep(PAUSE_SECONDS)


def retire(session: Session, key_id: str, actor: str) -> None:
    """Refuse what this key signs from now on. What it signed before stays valid."""
    lock(session, LOCK)
    key = session.get(SigningKey, key_id)
    if key is None or key.retired_at is not None or key.revoked_at is not None:
        raise NotFound("no active key has this id; `lethe key list` shows all keys")
    key.retired_at = current_time(session)
    audit.record(session, actor, "key.retired", key_id)


def revoke(session: Session, key_id: str, at: datetime, reason: str, actor: str) -> None:
    """Refuse what this key signed at `at` or later. The time can be moved back, never forward."""
    lock(session, LOCK)
    key = session.get(SigningKey, key_id)
    if key is None or (key.revoked_at is not None and key.revoked_at <= at):
        raise NotFound("no key with this id is trusted at that time; `lethe key list` shows all keys")
    key.revoked_at, key.reason = at, reason
    audit.record(session, actor, "key.revoked", key_id, at=at.isoformat(), reason=reason)


def all_keys(session: Session) -> Sequence[SigningKey]:
    """Return all keys, newest first."""
    return session.scalars(select(SigningKey).order_by(SigningKey.created_at.desc(), SigningKey.key_id)).all()


def keys_for(session: Session, signer: StatementSigner) -> Sequence[SigningKey]:
    """Return all keys, the signer's first."""
    own = signer.key_id, signer.log_key_id
    return sorted(all_keys(session), key=lambda key: own.index(key.key_id) if key.key_id in own else len(own))


def public_pem(key: SigningKey) -> str:
    return write_pem(key.public_key)


def _unlisted(session: Session, signer: StatementSigner) -> dict[SigningUse, bytes]:
    listed = set(session.scalars(select(SigningKey.key_id)))
    return {use: key for use, key in signer.public_keys.items() if key_id_of(key) not in listed}


def _list_first_keys(session: Session, signer: StatementSigner, settings: Settings) -> None:
    lock(session, ADDING)
    sources = {SigningUse.STATEMENTS: settings.signing_key_source, SigningUse.LOG: settings.log_key_source}
    for use, public_key in _unlisted(session, signer).items():
        if _has_active(session, use):
            variable, problem = sources[use].variable, _describe_unlisted(use, key_id_of(public_key))
            raise ConfigurationError(f"{variable}: {problem}")
        add(session, public_key, use, actor="lethe")


def _has_active(session: Session, use: SigningUse) -> bool:
    """Whether a key of this use is active. A key listed before uses were told apart signs statements."""
    uses = or_(SigningKey.use == use, SigningKey.use.is_(None) & (use == SigningUse.STATEMENTS))
    active = select(SigningKey.key_id).where(uses, SigningKey.retired_at.is_(None), SigningKey.revoked_at.is_(None))
    return session.scalar(active.limit(1)) is not None


def _describe_unlisted(use: SigningUse, key_id: str) -> str:
    return (
        f"the {WORDS[use]} {key_id[:8]} is not in the list of keys, which has another in use: configure that one; or, "
        f"if it was lost, run `lethe key add --use {use} --reason TEXT`."
    )
