"""Bearer tokens: issued once, shown once, stored as a hash."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store import audit
from service.store.clock import current_time
from service.store.errors import NotFound
from service.store.states import Role
from service.store.tables import Token


@dataclass(frozen=True)
class Caller:
    """Caller that a token identifies."""

    name: str
    role: Role
    token_id: uuid.UUID


def issue_token(session: Session, caller: str, role: Role, actor: str) -> str:
    """Create a token and return it. It cannot be read again."""
    secret = f"lethe_{role}_{secrets.token_urlsafe(32)}"
    token = Token(id=uuid.uuid4(), caller=caller, role=role, digest=_digest(secret))
    session.add(token)
    audit.record(session, actor, "token.issued", token.id, caller=caller, role=role)
    return secret


def find_caller(session: Session, secret: str) -> Caller | None:
    """Return the caller of an active token."""
    # 256 random bits need no slow hash, and the lookup's timing reveals only the digest.
    token = session.scalar(select(Token).where(Token.digest == _digest(secret), Token.revoked_at.is_(None)))
    return Caller(token.caller, Role(token.role), token.id) if token else None


def list_tokens(session: Session) -> Sequence[Token]:
    return session.scalars(select(Token).order_by(Token.created_at)).all()


def revoke_token(session: Session, token_id: uuid.UUID, actor: str) -> None:
    token = session.get(Token, token_id)
    if token is None or token.revoked_at is not None:
        raise NotFound("no active token has this id; `lethe token list` shows all tokens")
    token.revoked_at = current_time(session)
    audit.record(session, actor, "token.revoked", token.id, caller=token.caller, role=token.role)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
