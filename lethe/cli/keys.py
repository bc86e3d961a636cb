"""`lethe key` and `lethe secrets`: list, rotate, retire, revoke and export signing keys; print new secrets."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lethe.cli.options import DataDir
from lethe.cli.output import out, print_note
from lethe.cli.store import open_store
from service.settings import new_key

if TYPE_CHECKING:
    from service.settings import Settings
    from service.store.signing.statements import StatementSigner
    from service.store.tables import SigningKey

MAX_REASON_LENGTH = 500

keys = typer.Typer(
    help="""Manage the keys that sign receipts, certificates, callbacks and the log. To replace the key in use:

1. [bold]lethe key rotate[/bold] creates a new key and adds it to the public list. Nothing is interrupted.

2. Restart the API, the workers and the sweep. Until then they sign with the old key; both keys are valid.

3. [bold]lethe key retire[/bold] the old key. Its earlier signatures stay valid.

If a key may have leaked, also [bold]lethe key revoke[/bold] it as of the time when that may have happened.
""",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
KeyId = Annotated[str, typer.Argument(metavar="KEYID", help="The whole key id, as `lethe key list` prints it.")]


def print_secrets() -> None:
    """Print new secrets, as lines for an environment file."""
    for variable in ("LETHE_IDENTITY_KEY", "LETHE_SIGNING_KEY"):
        out.print(f"{variable}={new_key()}", highlight=False)


@keys.command("list")
def list_all(data_dir: DataDir = None) -> None:
    """List all keys, starting with the one that this configuration signs with."""
    from service.store.signing.keys import keys_for

    with open_store(data_dir) as (settings, database):
        signer = _signer(settings)
        with database.reading() as session:
            for key in keys_for(session, signer):
                typer.echo(f"{key.key_id}  {_describe(key, key.key_id == signer.key_id)}")


@keys.command("rotate")
def rotate(
    data_dir: DataDir = None,
    show: Annotated[
        bool,
        typer.Option("--print", help="Print the new key, once; for keys from the environment or a command."),
    ] = False,
) -> None:
    """Create a new key and add it to the public list, beside the old one.

    A key file is overwritten with the new key; the private half of the old one is no longer needed. Running processes
    sign with the old key until they are restarted.
    """
    from service.settings.key_sources import replace_key_file
    from service.store.signing.keys import rotate as rotate_key
    from service.store.signing.statements import StatementSigner

    with open_store(data_dir) as (settings, database):
        if settings.signing_key_file is None and not show:
            raise typer.BadParameter(
                f"the key comes from {settings.signing_key_source}, which Lethe cannot write: pass --print and store "
                "the printed key there"
            )
        seed, old = new_key(), _signer(settings)
        new = StatementSigner(base64.b64decode(seed), settings.origin)
        with database.writing() as session:
            rotate_key(session, old.public_key, new.public_key, actor="lethe key rotate")
            if settings.signing_key_file is not None:
                replace_key_file(settings.signing_key_file, seed)
    if settings.signing_key_file is None:
        typer.echo(f"LETHE_SIGNING_KEY={seed}" if settings.signing_key else seed)
    print_note(
        f"The new key is {new.key_id}.\nRestart the API, the workers and the sweep: until then they sign with the old "
        f"key, and both are valid. Then run\nlethe key retire {old.key_id}"
    )


@keys.command("retire")
def retire(key_id: KeyId, data_dir: DataDir = None) -> None:
    """Mark a key as no longer in use. Restart its users first: signatures it makes from now on are refused."""
    from service.store.signing.keys import retire as retire_key

    with open_store(data_dir) as (settings, database):
        if _signer(settings).key_id == key_id:
            raise typer.BadParameter("this configuration signs with the key: run `lethe key rotate` and restart first")
        with database.writing() as session:
            retire_key(session, key_id, actor="lethe key retire")
    print_note("Retired. Its earlier signatures stay valid. Give auditors the new list: `lethe key export`.")


@keys.command("revoke")
def revoke(
    key_id: KeyId,
    at: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Earliest time of a possible leak, with a time zone: 2030-03-31T12:00:00Z.",
        ),
    ],
    reason: Annotated[str, typer.Option(help="One line. It is published and kept for ever: name no person.")],
    data_dir: DataDir = None,
) -> None:
    """Revoke a key that may have leaked. Signatures it made at that time or later are refused.

    The time can be moved back later, but never forward. A running process signs with the key until it is stopped, and
    cannot start again with it: rotate and restart.
    """
    from service.store.signing.keys import revoke as revoke_key

    revoked_at, line = _parse_past_time(at), _parse_line(reason)
    with open_store(data_dir) as (_, database), database.writing() as session:
        revoke_key(session, key_id, revoked_at, line, actor="lethe key revoke")
    print_note(
        "Revoked. If it was in use, `lethe key rotate` and restart. Give auditors the new list: `lethe key export`."
    )


@keys.command("export")
def export(
    data_dir: DataDir = None,
    file: Annotated[Path | None, typer.Option("--out", help="Write to this file, not to the terminal.")] = None,
    pem: Annotated[
        bool, typer.Option("--pem", help="Export bare keys. They carry no dates, so revoked keys are left out.")
    ] = False,
) -> None:
    """Export the list of public keys, as /api/v1/log/keys serves it, for `lethe verify --key`."""
    from service.schemas.log import public_keys_out
    from service.store.signing.keys import keys_for

    with open_store(data_dir) as (settings, database), database.reading() as session:
        listed = public_keys_out(settings, keys_for(session, _signer(settings)))
    text = listed.model_dump_json(indent=2) + "\n"
    if pem:
        text = "".join(key.public_key_pem for key in listed.keys if key.revoked_at is None)
    if file is None:
        typer.echo(text, nl=False)
    else:
        file.write_text(text)


def _signer(settings: Settings) -> StatementSigner:
    """Return the configured signer, even if its key is revoked: replacing such a key needs it."""
    from service.store.signing.statements import StatementSigner

    return StatementSigner(settings.signing_key_bytes(), settings.origin)


def _describe(key: SigningKey, in_use: bool) -> str:
    ends = [("retired", key.retired_at), ("revoked from", key.revoked_at)]
    parts = ["in use"] if in_use else []
    parts += [f"since {_format_time(key.created_at)}"]
    parts += [f"{event} {_format_time(timestamp)}" for event, timestamp in ends if timestamp is not None]
    return ", ".join(parts) + (f": {key.reason}" if key.reason else "")


def _format_time(timestamp: datetime) -> str:
    return timestamp.isoformat(timespec="seconds").replace("+00:00", "Z")


def _parse_past_time(text: str) -> datetime:
    try:
        timestamp = datetime.fromisoformat(text)
    except ValueError:
        timestamp = None
    if timestamp is None or timestamp.tzinfo is None:
        raise typer.BadParameter("give a time with a time zone, such as 2030-03-31T12:00:00Z", param_hint="--at")
    if timestamp > datetime.now(UTC):
        raise typer.BadParameter("a key cannot be revoked in advance: retire it when it is replaced", param_hint="--at")
    return timestamp.astimezone(UTC)


def _parse_line(text: str) -> str:
    line = text.strip()
    if not 0 < len(line) <= MAX_REASON_LENGTH or not line.isprintable():
        raise typer.BadParameter(f"give one line of up to {MAX_REASON_LENGTH} characters", param_hint="--reason")
    return line
