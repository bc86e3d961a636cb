"""`lethe token`: issue, list and revoke API tokens."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from ipaddress import ip_network
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from lethe.cli.options import DataDir
from lethe.cli.output import out
from lethe.cli.store import open_store

if TYPE_CHECKING:
    from service.store.access.tokens import Network
    from service.store.tables import Token

NEVER = "never"
UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1)}
tokens = typer.Typer(help="Issue, list and revoke API tokens.", no_args_is_help=True)


@tokens.command("issue")
def issue(
    role: Annotated[str, typer.Option(help="compliance, operator, auditor or engineer.")],
    name: Annotated[str, typer.Option(help="Name of the caller; it owns the deletions and idempotency keys.")],
    expires: Annotated[str, typer.Option(help="Lifetime: 90d, 12h, or never.")] = "365d",
    model: Annotated[
        list[uuid.UUID] | None,
        typer.Option(help="Only this model may be named and seen. Repeat for several; all models by default."),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(help="Only clients of this network, such as 10.0.0.0/8. Repeat for several; all by default."),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Issue a token. It is printed once and stored only as a hash."""
    from service.store.access.tokens import Limits, issue_token
    from service.store.errors import InvalidLimits
    from service.store.states import Role

    if role not in list(Role):
        raise typer.BadParameter(f"choose one of {', '.join(Role)}", param_hint="--role")
    lifetime = _lifetime(expires)
    limits = Limits(frozenset(model) if model else None, tuple(_network(text) for text in network or ()))
    try:
        with open_store(data_dir) as (_, database), database.writing() as session:
            secret = issue_token(session, name, Role(role), "lethe token issue", lifetime, limits)
    except InvalidLimits as error:
        raise typer.BadParameter(str(error), param_hint="--model") from None
    out.print(secret, highlight=False, soft_wrap=True)


@tokens.command("list")
def list_all(data_dir: DataDir = None) -> None:
    """List all tokens, without their secrets."""
    from service.store.access.tokens import list_tokens

    table = Table("id", "name", "role", "issued", "expires", "revoked", "limited to")
    with open_store(data_dir) as (_, database), database.reading() as session:
        for token in list_tokens(session):
            table.add_row(str(token.id), token.caller, token.role, *_times(token), _limited_to(token))
    out.print(table)


@tokens.command("revoke")
def revoke(
    token_id: Annotated[uuid.UUID, typer.Argument(help="Id of the token, as `lethe token list` prints it.")],
    data_dir: DataDir = None,
) -> None:
    """Revoke a token. Requests with it are refused from now on."""
    from service.store.access.tokens import revoke_token

    with open_store(data_dir) as (_, database), database.writing() as session:
        revoke_token(session, token_id, actor="lethe token revoke")
    out.print("Revoked.")


def _lifetime(text: str) -> timedelta | None:
    if text == NEVER:
        return None
    match = re.fullmatch(r"([1-9][0-9]{0,4})([hd])", text)
    if match is None:
        raise typer.BadParameter("write days or hours such as 90d or 12h, or never", param_hint="--expires")
    return int(match[1]) * UNITS[match[2]]


def _network(text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError:
        message = "write a network such as 10.0.0.0/8 or 2001:db8::/32, without bits beyond its prefix"
        raise typer.BadParameter(message, param_hint="--network") from None


def _times(token: Token) -> list[str]:
    times = (token.created_at, token.expires_at, token.revoked_at)
    return [time.isoformat(timespec="seconds") if time else "" for time in times]


def _limited_to(token: Token) -> str:
    return "\n".join([*(token.models or ()), *(token.networks or ())])
