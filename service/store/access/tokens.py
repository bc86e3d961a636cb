"""Bearer tokens: issued once, shown once, stored as a hash. They expire and can be limited to models and networks."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.orm import Session

from service.store import audit
from service.store.clock import current_time
from service.store.errors import InvalidLimits, NotFound
from service.store.states import Role
from service.store.tables import Model, Token

Network = IPv4Network | IPv6Network
LIMITED_ROLES = (Role.COMPLIANCE, Role.ENGINEER)
"""Roles whose tokens can be limited to models. The others read the log, which concerns all models."""


@dataclass(frozen=True)
class Limits:
    """What a token is limited to."""

    models: frozenset[uuid.UUID] | None = None
    """The only models that it may name and see; None for all."""
    networks: tuple[Network, ...] = ()
    """The only networks from which it is accepted; empty for all."""

    def allows_model(self, model_id: uuid.UUID) -> bool:
        return self.models is None or model_id in self.models

    def allows_address(self, host: str | None) -> bool:
        """Whether a client with this address may use the token. One without an address may not if it is limited."""
        if not self.networks:
            return True
        try:
            address = ip_address(host or "")
        except ValueError:
            return False
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self.networks)


UNLIMITED = Limits()


@dataclass(frozen=True)
class Caller:
    """Caller that a token identifies."""

    name: str
    role: Role
    token_id: uuid.UUID
    limits: Limits = UNLIMITED
    expires_at: datetime | None = None


def issue_token(
    session: Session,
    caller: str,
    role: Role,
    actor: str,
    lifetime: timedelta | None = None,
    limits: Limits = UNLIMITED,
) -> str:
    """Create a token and return it. It cannot be read again. Without a lifetime it does not expire."""
    _check_models(session, caller, role, limits.models)
    secret = f"lethe_{role}_{secrets.token_urlsafe(32)}"
    expires_at = current_time(session) + lifetime if lifetime else None
    models = None if limits.models is None else sorted(map(str, limits.models))
    networks = [str(network) for network in limits.networks] or None
    token = Token(
        id=uuid.uuid4(),
        caller=caller,
        role=role,
        digest=_digest(secret),
        expires_at=expires_at,
        models=models,
        networks=networks,
    )
    session.add(token)
    expiry = expires_at.isoformat() if expires_at else None
    details = {"expires_at": expiry, "models": models, "networks": networks}
    audit.record(session, actor, "token.issued", token.id, caller=caller, role=role, **details)
    return secret


def find_caller(session: Session, secret: str) -> Caller | None:
    """Return the caller of an active token."""
    # 256 random bits need no slow hash, and the lookup's timing reveals only the digest.
    token = session.scalar(select(Token).where(Token.digest == _digest(secret), _is_active(session)))
    return Caller(token.caller, Role(token.role), token.id, _limits(token), token.expires_at) if token else None


def is_active(session: Session, token_id: uuid.UUID) -> bool:
    """Whether the token is neither revoked nor expired. Streams ask again while they last."""
    return session.scalar(select(Token.id).where(Token.id == token_id, _is_active(session))) is not None


def list_tokens(session: Session) -> Sequence[Token]:
    return session.scalars(select(Token).order_by(Token.created_at)).all()


def revoke_token(session: Session, token_id: uuid.UUID, actor: str) -> None:
    token = session.get(Token, token_id)
    if token is None or token.revoked_at is not None:
        raise NotFound("no active token has this id; `lethe token list` shows all tokens")
    token.revoked_at = current_time(session)
    audit.record(session, actor, "token.revoked", token.id, caller=token.caller, role=token.role)


def _is_active(session: Session) -> ColumnElement[bool]:
    return Token.revoked_at.is_(None) & or_(Token.expires_at.is_(None), Token.expires_at > current_time(session))


def _limits(token: Token) -> Limits:
    models = None if token.models is None else frozenset(map(uuid.UUID, token.models))
    return Limits(models, tuple(map(ip_network, token.networks or ())))


def _check_models(session: Session, caller: str, role: Role, models: frozenset[uuid.UUID] | None) -> None:
    if models is not None:
        if role not in LIMITED_ROLES:
            raise InvalidLimits(
                f"tokens of role {role} read the log of all models; only {', '.join(LIMITED_ROLES)} "
                "tokens can be limited to models"
            )
        registered = set(session.scalars(select(Model.id).where(Model.id.in_(models))))
        if registered != models:
            raise InvalidLimits(f"{len(models - registered)} of the models are not registered")
    if role == Role.COMPLIANCE:
        _check_same_models(session, caller, models)


def _check_same_models(session: Session, caller: str, models: frozenset[uuid.UUID] | None) -> None:
    """A name owns its deletions, so each of its tokens sees what any other has requested, revoked ones included."""
    earlier = session.scalars(select(Token).where(Token.caller == caller, Token.role == Role.COMPLIANCE))
    if any(_limits(token).models != models for token in earlier):
        raise InvalidLimits(
            "compliance tokens of this name are limited to other models, or to none: the name owns its deletions, so "
            "choose the same models or another name"
        )


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
