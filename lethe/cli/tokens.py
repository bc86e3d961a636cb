"""`lethe token`: issue, list and revoke API tokens."""

from __future__ import annotations

import uuid
from typing import Annotated

import typer
from rich.table import Table

from lethe.cli.options import DataDir
from lethe.cli.output import out
from lethe.cli.store import open_store

tokens = typer.Typer(help="Issue, list and revoke API tokens.", no_args_is_help=True)


@tokens.command("issue")
def issue(
    role: Annotated[str, typer.Option(help="compliance, operator, auditor or engineer.")],
    name: Annotated[str, typer.Option(help="Name of the caller; it owns the deletions and idempotency keys.")],
    data_dir: DataDir = None,
) -> None:
    """Issue a token. It is printed once and stored only as a hash."""
    from service.store.access.tokens import issue_token
    from service.store.states import Role

    if role not in list(Role):
        raise typer.BadParameter(f"choose one of {', '.join(Role)}", param_hint="--role")
    with open_store(data_dir) as (_, database), database.writing() as session:
        secret = issue_token(session, name, Role(role), actor="lethe token issue")
    out.print(secret, highlight=False, soft_wrap=True)


@tokens.command("list")
def list_all(data_dir: DataDir = None) -> None:
    """List all tokens, without their secrets."""
    from service.store.access.tokens import list_tokens

    table = Table("id", "name", "role", "issued", "revoked")
    with open_store(data_dir) as (_, database), database.reading() as session:
        for token in list_tokens(session):
            issued = token.created_at.isoformat(timespec="seconds")
            revoked = token.revoked_at.isoformat(timespec="seconds") if token.revoked_at else ""
            table.add_row(str(token.id), token.caller, token.role, issued, revoked)
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
