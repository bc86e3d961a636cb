"""Check values of secrets. A process with another secret than the database's would sign falsehoods: it is refused.

With another identity key, everybody would seem to be absent. Signing keys have their public list instead.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.settings import ConfigurationError
from service.store.database import Database
from service.store.dialect import insert
from service.store.errors import SecretMismatch
from service.store.tables import SecretCheck

IDENTITY_KEY = "LETHE_IDENTITY_KEY"
OPENDSR_KEY = "LETHE_OPENDSR_KEY_FILE"
REMEDIES = {
    IDENTITY_KEY: "configure the identity key of this database, then restart; with another key, people who are held "
    "would seem to be absent. After `lethe key rotate-identity`, that is the whole list of keys",
    OPENDSR_KEY: "configure the OpenDSR key of this database, then restart; run `lethe key accept-opendsr` if it was "
    "replaced on purpose",
}


@dataclass(frozen=True)
class CheckValue:
    """Value by which a secret is recognised. It reveals nothing about the secret."""

    name: str
    """Environment variable of the secret."""
    value: bytes


def check_message(name: str) -> bytes:
    """Return the message whose MAC under a secret is its check value."""
    return f"lethe-secret-check\0{name}".encode()


def ensure_match(database: Database, check: CheckValue) -> None:
    """Store the value at the first start; raise ConfigurationError if the database has another one."""
    with database.reading() as session:
        stored = find_value(session, check.name)
    if stored is None:
        with database.writing() as session:
            row = {"name": check.name, "value": check.value}
            session.execute(insert(session, SecretCheck).values(row).on_conflict_do_nothing())
            stored = find_value(session, check.name)
    if stored is None or not hmac.compare_digest(stored, check.value):
        raise ConfigurationError(describe_mismatch(check.name))


def require_match(session: Session, check: CheckValue) -> None:
    """Raise SecretMismatch unless the database has this value. It stays so until the transaction ends."""
    mismatch = find_mismatch(session, check, lock=True)
    if mismatch is not None:
        raise SecretMismatch(mismatch)


def find_mismatch(session: Session, check: CheckValue, *, lock: bool = False) -> str | None:
    """Return what is wrong with the secret and what to do about it; None if it is the database's."""
    stored = find_value(session, check.name, lock=lock)
    is_match = stored is not None and hmac.compare_digest(stored, check.value)
    return None if is_match else describe_mismatch(check.name)


def find_value(session: Session, name: str, *, lock: bool = False) -> bytes | None:
    """Return the stored check value; None before the first start."""
    query = select(SecretCheck.value).where(SecretCheck.name == name)
    return session.scalar(query.with_for_update(read=True) if lock else query)


def replace_value(session: Session, check: CheckValue) -> None:
    """Accept another secret in place of the one used so far."""
    row = {"name": check.name, "value": check.value}
    statement = insert(session, SecretCheck).values(row)
    session.execute(statement.on_conflict_do_update(index_elements=["name"], set_={"value": check.value}))


def describe_mismatch(name: str) -> str:
    return f"{name} is not the secret that this database was used with: {REMEDIES[name]}."
