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
from service.store.states import SigningUse

if TYPE_CHECKING:
    from service.store.tables import SigningKey

MAX_REASON_LENGTH = 500

keys = typer.Typer(
    help="""Manage the two keys that sign: one receipts, certificates and callbacks, the other the log. To replace one:

1. [bold]lethe key rotate[/bold] creates a new key and adds it to the public list. Nothing is interrupted. Add
[bold]--use log[/bold] for the log's key.

2. Restart the API, the workers and the sweep. Until then they sign with the old key; both keys are valid.

3. [bold]lethe key retire[/bold] the old key. Its earlier signatures stay valid.

If a key may have leaked, also [bold]lethe key revoke[/bold] it as of the time when that may have happened.
""",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
Use = Annotated[SigningUse, typer.Option("--use", help="What the key signs: statements or the log.")]
Reason = Annotated[str, typer.Option(help="One line. It is published and kept for ever: name no person.")]
KeyId = Annotated[str, typer.Argument(metavar="KEYID", help="The whole key id, as `lethe key list` prints it.")]


def print_secrets() -> None:
    """Print new secrets, as lines for an environment file."""
    for variable in ("LETHE_IDENTITY_KEY", "LETHE_SIGNING_KEY", "LETHE_LOG_KEY"):
        out.print(f"{variable}={new_key()}", highlight=False)


@keys.command("list")
def list_all(data_dir: DataDir = None) -> None:
    """List all keys, starting with those that this configuration signs with."""
    from service.store.signing.keys import configured_signer, keys_for

    with open_store(data_dir) as (settings, database):
        signer = configured_signer(settings)
        with database.reading() as session:
            for key in keys_for(session, signer):
                typer.echo(f"{key.key_id}  {_describe(key, key.key_id in (signer.key_id, signer.log_key_id))}")


@keys.command("add")
def add(
    use: Use,
    reason: Annotated[str, typer.Option(help="One line, kept in the log for ever: name no person.")],
    data_dir: DataDir = None,
) -> None:
    """Add the configured key to the public list, if the listed one was lost. Otherwise rotate.

    Retire the lost key afterwards, or revoke it if somebody else may have it.
    """
    from service.store.signing.keys import add_configured, configured_signer

    line = _parse_line(reason)
    with open_store(data_dir) as (settings, database), database.writing() as session:
        key_id = add_configured(session, configured_signer(settings), use, line, actor="lethe key add")
    print_note(f"Added {key_id}. Retire the lost key: `lethe key list` shows its id. Then `lethe key export`.")


@keys.command("rotate")
def rotate(
    data_dir: DataDir = None,
    use: Use = SigningUse.STATEMENTS,
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
    from service.store.signing.keys import configured_signer
    from service.store.signing.keys import rotate as rotate_key
    from service.store.signing.statements import public_key_of

    with open_store(data_dir) as (settings, database):
        source = settings.log_key_source if use == SigningUse.LOG else settings.signing_key_source
        if source.file is None and not show:
            raise typer.BadParameter(
                f"the key comes from {source.variable}, which Lethe cannot write: pass --print and store the printed "
                "key there"
            )
        seed, signer = new_key(), configured_signer(settings)
        old, new = signer.public_keys[use], public_key_of(base64.b64decode(seed))
        with database.writing() as session:
            old_id, new_id = rotate_key(session, old, new, use, actor="lethe key rotate")
            if source.file is not None:
                replace_key_file(source.file, seed)
    if source.file is None:
        typer.echo(f"{source.variable}={seed}" if source.text else seed)
    print_note(
        f"The new key is {new_id}.\nRestart the API, the workers and the sweep: until then they sign with the old "
        f"key, and both are valid. Then run\nlethe key retire {old_id}"
    )


@keys.command("retire")
def retire(key_id: KeyId, data_dir: DataDir = None) -> None:
    """Mark a key as no longer in use. Restart its users first: they can sign nothing from now on."""
    from service.store.signing.keys import configured_signer, end_key
    from service.store.signing.keys import retire as retire_key

    with open_store(data_dir) as (settings, database):
        signer = configured_signer(settings)
        if key_id in (signer.key_id, signer.log_key_id):
            raise typer.BadParameter("this configuration signs with the key: run `lethe key rotate` and restart first")
        end_key(database, lambda session: retire_key(session, key_id, actor="lethe key retire"))
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
    reason: Reason,
    data_dir: DataDir = None,
) -> None:
    """Revoke a key that may have leaked. Signatures it made at that time or later are refused.

    The time can be moved back later, but never forward. A running process that has the key signs nothing from now on,
    and cannot start again with it: rotate and restart. Then reissue the certificates that are refused:
    `lethe certificate reissue --key KEYID`.
    """
    from service.store.signing.keys import end_key
    from service.store.signing.keys import revoke as revoke_key

    revoked_at, line = _parse_past_time(at), _parse_line(reason)
    with open_store(data_dir) as (_, database):
        end_key(database, lambda session: revoke_key(session, key_id, revoked_at, line, actor="lethe key revoke"))
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
    from service.store.signing.keys import configured_signer, keys_for

    with open_store(data_dir) as (settings, database), database.reading() as session:
        listed = public_keys_out(settings, keys_for(session, configured_signer(settings)))
    text = listed.model_dump_json(indent=2) + "\n"
    if pem:
        text = "".join(key.public_key_pem for key in listed.keys if key.revoked_at is None)
    if file is None:
        typer.echo(text, nl=False)
    else:
        file.write_text(text)


def _describe(key: SigningKey, in_use: bool) -> str:
    ends = [("retired", key.retired_at), ("revoked from", key.revoked_at)]
    parts = [key.use or "statements and log", *(["in use"] if in_use else [])]
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
