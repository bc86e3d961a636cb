from __future__ import annotations

import hashlib
import uuid
from datetime import timedelta
from ipaddress import ip_network

import pytest
from sqlalchemy import select, update

from service.settings import Settings
from service.store.access.tokens import (
    UNLIMITED,
    Limits,
    find_caller,
    is_active,
    issue_token,
    list_tokens,
    revoke_token,
)
from service.store.clock import current_time
from service.store.database import Database
from service.store.errors import InvalidLimits, NotFound
from service.store.states import Role
from service.store.tables import AuditEntry, Token
from tests.samples import register_sample


def issue(
    database: Database,
    caller: str = "acme",
    role: Role = Role.COMPLIANCE,
    lifetime: timedelta | None = None,
    limits: Limits = UNLIMITED,
) -> str:
    with database.writing() as session:
        return issue_token(session, caller, role, "ops", lifetime, limits)


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


def test_an_expired_token_identifies_nobody(database: Database) -> None:
    secret = issue(database, lifetime=timedelta(days=90))
    with database.writing() as session:
        caller = find_caller(session, secret)
        assert caller is not None
        assert caller.expires_at is not None
        assert caller.expires_at - current_time(session) > timedelta(days=89)
        assert is_active(session, caller.token_id)
        session.execute(update(Token).values(expires_at=current_time(session) - timedelta(seconds=1)))
    with database.reading() as session:
        assert find_caller(session, secret) is None
        assert not is_active(session, caller.token_id)


def test_limits_are_stored_with_the_token_and_in_the_audit_trail(settings: Settings, database: Database) -> None:
    model_id = register_sample(settings, database)
    limits = Limits(frozenset([model_id]), (ip_network("10.0.0.0/8"), ip_network("2001:db8::/32")))
    secret = issue(database, limits=limits)
    with database.reading() as session:
        caller = find_caller(session, secret)
        details = session.scalars(select(AuditEntry.details).where(AuditEntry.action == "token.issued")).one()
    assert caller is not None
    assert caller.limits == limits
    assert details["models"] == [str(model_id)]
    assert details["networks"] == ["10.0.0.0/8", "2001:db8::/32"]


@pytest.mark.parametrize(
    ("host", "is_allowed"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("2001:db8::7", True),
        ("11.0.0.1", False),
        ("::1", False),
        ("10.1.2.3.example", False),
        ("", False),
        (None, False),
    ],
)
def test_a_token_is_accepted_from_its_networks_only(host: str | None, is_allowed: bool) -> None:
    limits = Limits(networks=(ip_network("10.0.0.0/8"), ip_network("2001:db8::/32")))
    assert limits.allows_address(host) is is_allowed
    assert UNLIMITED.allows_address(host)


def test_the_compliance_tokens_of_a_name_have_the_same_models(settings: Settings, database: Database) -> None:
    """They all see the deletions of the name."""
    model_id = register_sample(settings, database)
    limited = Limits(frozenset([model_id]))
    issue(database, "limited", limits=limited)
    issue(database, "limited", limits=limited)
    issue(database, "free")
    for caller, limits in (("limited", UNLIMITED), ("free", limited)):
        with pytest.raises(InvalidLimits, match="another name"):
            issue(database, caller, limits=limits)


def test_only_some_roles_can_be_limited_to_registered_models(settings: Settings, database: Database) -> None:
    limits = Limits(frozenset([register_sample(settings, database)]))
    issue(database, role=Role.ENGINEER, limits=limits)
    for role in (Role.OPERATOR, Role.AUDITOR):
        with pytest.raises(InvalidLimits, match="log of all models"):
            issue(database, role=role, limits=limits)
    with pytest.raises(InvalidLimits, match="not registered"):
        issue(database, "other", limits=Limits(frozenset([uuid.uuid4()])))
