from __future__ import annotations

import hashlib
import uuid

import pytest
from sqlalchemy import select

from service.store.access.tokens import find_caller, issue_token, list_tokens, revoke_token
from service.store.database import Database
from service.store.errors import NotFound
from service.store.states import Role
from service.store.tables import AuditEntry


def issue(database: Database, caller: str = "acme", role: Role = Role.COMPLIANCE) -> str:
    with database.writing() as session:
        return issue_token(session, caller, role, actor="ops")


def test_a_token_identifies_its_caller(database: Database) -> None:
    first, second = issue(database), issue(database, role=Role.AUDITOR)
    assert first.startswith("lethe_compliance_")
    with database.reading() as session:
        callers = [find_caller(session, secret) for secret in (first, second)]
        ids = {token.digest: token.id for token in list_tokens(session)}
        assert [(caller.name, caller.role) for caller in callers if caller] == [
            ("acme", Role.COMPLIANCE),
            ("acme", Role.AUDITOR),
        ]
        for caller, secret in zip(callers, (first, second), strict=True):
            assert caller is not None
            assert caller.token_id == ids[hashlib.sha256(secret.encode()).hexdigest()]
        for wrong in ("", first[:-1], first.upper()):
            assert find_caller(session, wrong) is None


def test_only_the_hash_of_a_token_is_stored(database: Database) -> None:
    secret = issue(database)
    with database.reading() as session:
        (token,) = list_tokens(session)
        details = session.scalars(select(AuditEntry.details)).all()
    assert token.digest == hashlib.sha256(secret.encode()).hexdigest()
    assert secret not in repr(vars(token)) + repr(details)


def test_a_revoked_token_identifies_nobody_and_others_stay_valid(database: Database) -> None:
    old, new = issue(database), issue(database)
    with database.writing() as session:
        token = next(
            token for token in list_tokens(session) if token.digest == hashlib.sha256(old.encode()).hexdigest()
        )
        revoke_token(session, token.id, actor="ops")
    with database.reading() as session:
        assert find_caller(session, old) is None
        assert find_caller(session, new) is not None
        actions = session.scalars(select(AuditEntry.action).order_by(AuditEntry.id)).all()
    assert actions == ["token.issued", "token.issued", "token.revoked"]
    for token_id in (token.id, uuid.uuid4()):
        with pytest.raises(NotFound, match="lethe token list"), database.writing() as session:
            revoke_token(session, token_id, actor="ops")
