"""Identity keys: the hasher of a process, and the rotation that adds a key.

The keys are listed oldest first, and a stored hash is an HMAC through all keys in use. The list may hold more keys than
the database uses: so the new list is put in place first, and works before and after the rotation.
"""

from __future__ import annotations

import hmac
import uuid
from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.settings import Settings
from service.store import audit
from service.store.access.identities import IdentityHasher
from service.store.access.secret_checks import IDENTITY_KEY, ensure_match, find_value, require_match
from service.store.database import Database
from service.store.dialect import CHUNK_SIZE, allow_long_work
from service.store.erasure_traces import add_trace
from service.store.tables import IdempotencyKey, RequestBody, SecretCheck, Subject

T = TypeVar("T")


def open_hasher(settings: Settings, database: Database) -> IdentityHasher:
    """Return the hasher of this process. Raise ConfigurationError if the database was used with other keys."""
    try:
        keys = settings.identity_keys()
        with database.reading() as session:
            hasher = find_hasher(session, keys)
        ensure_match(database, hasher.check)
    except Exception:
        database.close()  # callers open both at once, and are left with neither
        raise
    return hasher


def find_hasher(session: Session, keys: Sequence[bytes]) -> IdentityHasher:
    """Return the hasher with those of the keys that the database uses: the first ones, or all."""
    stored = find_value(session, IDENTITY_KEY)
    prefixes = (IdentityHasher(*keys[:count]) for count in range(1, len(keys)))
    in_use = (hasher for hasher in prefixes if stored and hmac.compare_digest(stored, hasher.check.value))
    return next(in_use, IdentityHasher(*keys))


def add_key(session: Session, old: IdentityHasher, key: bytes, actor: str) -> int:
    """Wrap every stored hash in an HMAC with a new key. Return the number of subjects.

    Processes with the old keys alone can neither receive requests nor register models from now on.
    """
    allow_long_work(session)
    # Waits for transactions that rely on the old value; later ones wait for this one.
    row = session.scalars(select(SecretCheck).where(SecretCheck.name == IDENTITY_KEY).with_for_update()).one()
    require_match(session, old.check)
    wrap = IdentityHasher(key).mac
    subjects = _wrap_column(session, Subject.id, Subject.lookup, wrap)
    _wrap_column(session, RequestBody.id, RequestBody.mac, wrap)
    _wrap_column(session, IdempotencyKey.body_id, IdempotencyKey.key, lambda text: wrap(bytes.fromhex(text)).hex())
    row.value = wrap(row.value)
    add_trace(session)
    audit.record(session, actor, "identity_key.rotated", IDENTITY_KEY, subjects=subjects)
    return subjects


def _wrap_column(
    session: Session, key: InstrumentedAttribute[uuid.UUID], column: InstrumentedAttribute[T], wrap: Callable[[T], T]
) -> int:
    """Rewrite a column of hashes in chunks, in the order of a unique key; return the number of rows."""
    changed = update(key.class_.__table__).where(key == bindparam("row_key")).values({column.key: bindparam("wrapped")})
    page = select(key, column).order_by(key).limit(CHUNK_SIZE)
    rows, count = session.execute(page).all(), 0
    while rows:
        values = [{"row_key": row_key, "wrapped": wrap(value)} for row_key, value in rows]
        session.connection().execute(changed, values)
        count += len(rows)
        rows = session.execute(page.where(key > rows[-1][0])).all()
    return count
