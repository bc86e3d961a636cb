"""`lethe key`: the signing keys, from the first to the one in use. Each command imports what it needs when it runs."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from service.settings import ConfigurationError, load_settings, new_key

if TYPE_CHECKING:
    from service.settings import Settings
    from service.store.database import Database
    from service.store.signing.statements import StatementSigner
    from service.store.tables import SigningKey

LONGEST_REASON = 500

key = typer.Typer(
    help="""The keys that sign receipts, certificates, callbacks and the log. To replace the one in use:

1. [bold]lethe key rotate[/bold] makes another and puts it on the public list. Nothing is interrupted.

2. Restart the API, the workers and the sweep. Until then they sign with the old key, and both are good.

3. [bold]lethe key retire[/bold] the old one. What it signed stays good for ever.

If somebody else may have had a key, also [bold]lethe key revoke[/bold] it from the day on when that may have begun.
""",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", help="Where the embedded default keeps everything. [default: .lethe]", show_default=False
    ),
]
KeyId = Annotated[str, typer.Argument(metavar="KEYID", help="As `lethe key list` shows it, whole.")]


@key.command("list")
def key_list(data_dir: DataDir = None) -> None:
    """Show all keys, the one that this configuration signs with first."""
    from service.store.signing.keys import keys_for

    with _store(data_dir) as (settings, database):
        signer = _signer(settings)
        with database.reading() as session:
            for one in keys_for(session, signer):
                typer.echo(f"{one.key_id}  {_story(one, one.key_id == signer.key_id)}")


@key.command("rotate")
def key_rotate(
    data_dir: DataDir = None,
    show: Annotated[
        bool,
        typer.Option("--print", help="Where the key comes from the environment or a command: print the new one, once."),
    ] = False,
) -> None:
    """Make a new key and put it on the public list, beside the old one.

    A key file gets the new key in place of the old, whose private half is needed no more. Whatever runs goes on with
    the old key until it is restarted.
    """
    from service.settings.key_sources import replace_key_file
    from service.store.signing.keys import rotate
    from service.store.signing.statements import StatementSigner

    with _store(data_dir) as (settings, database):
        if settings.signing_key_file is None and not show:
            raise typer.BadParameter(
                f"the key comes from {settings.signing_key_source}, where Lethe cannot put another: say --print, and "
                "put what it prints where that finds it"
            )
        seed, old = new_key(), _signer(settings)
        new = StatementSigner(base64.b64decode(seed), settings.origin)
        with database.writing() as session:
            rotate(session, old.public_key, new.public_key, actor="lethe key rotate")
            if settings.signing_key_file is not None:
                replace_key_file(settings.signing_key_file, seed)
    if settings.signing_key_file is None:
        typer.echo(f"LETHE_SIGNING_KEY={seed}" if settings.signing_key else seed)
    _say(
        f"The new key is {new.key_id}.\nRestart the API, the workers and the sweep: until then they sign with the old "
        f"one, and both are good. Then run\nlethe key retire {old.key_id}"
    )


@key.command("retire")
def key_retire(key_id: KeyId, data_dir: DataDir = None) -> None:
    """Say that a key signs no more. Restart what used it first: what it signs from now on is refused."""
    from service.store.signing.keys import retire

    with _store(data_dir) as (settings, database):
        if _signer(settings).key_id == key_id:
            raise typer.BadParameter("this configuration signs with it: run `lethe key rotate` and restart first")
        with database.writing() as session:
            retire(session, key_id, actor="lethe key retire")
    _say("Retired. What it signed until now stays good. Give auditors the new list: `lethe key export`.")


@key.command("revoke")
def key_revoke(
    key_id: KeyId,
    at: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="When somebody else may first have had it, with its zone: 2030-03-31T12:00:00Z."
        ),
    ],
    reason: Annotated[str, typer.Option(help="One line, public and kept for ever: name no person.")],
    data_dir: DataDir = None,
) -> None:
    """Say that a key may have been in wrong hands: what it signed then or later is refused.

    The time can be moved to an earlier one afterwards, never to a later one. A process that signs with the key goes on
    until it is stopped, and does not start again: rotate and restart.
    """
    from service.store.signing.keys import revoke

    moment, why = _past(at), _one_line(reason)
    with _store(data_dir) as (_, database), database.writing() as session:
        revoke(session, key_id, moment, why, actor="lethe key revoke")
    _say("Revoked. If it was in use: `lethe key rotate`, and restart. Give auditors the new list: `lethe key export`.")


@key.command("export")
def key_export(
    data_dir: DataDir = None,
    file: Annotated[Path | None, typer.Option("--out", help="Write it there instead of to the terminal.")] = None,
    pem: Annotated[
        bool, typer.Option("--pem", help="The bare keys. They carry no dates, so revoked ones are left out.")
    ] = False,
) -> None:
    """Write the list of public keys, for auditors to keep: as /api/v1/log/keys serves it, for `lethe verify --key`."""
    from service.schemas.deletions import public_keys_out
    from service.store.signing.keys import keys_for

    with _store(data_dir) as (settings, database), database.reading() as session:
        listed = public_keys_out(settings, keys_for(session, _signer(settings)))
    text = listed.model_dump_json(indent=2) + "\n"
    if pem:
        text = "".join(one.public_key_pem for one in listed.keys if one.revoked_at is None)
    if file is None:
        typer.echo(text, nl=False)
    else:
        file.write_text(text)


@contextmanager
def _store(data_dir: Path | None) -> Iterator[tuple[Settings, Database]]:
    from service.settings.key_sources import KeyUnavailable
    from service.store.database import Database
    from service.store.errors import NotFound
    from service.store.migrate import is_current

    settings = load_settings(data_dir)
    database = Database(settings.database)
    try:
        if not is_current(database):
            raise ConfigurationError("the database does not have this version's schema: run `lethe migrate` first.")
        yield settings, database
    except (NotFound, KeyUnavailable) as error:
        raise typer.BadParameter(str(error)) from None
    finally:
        database.close()


def _signer(settings: Settings) -> StatementSigner:
    """Without asking whether it may still sign: who replaces a revoked key has that key."""
    from service.store.signing.statements import StatementSigner

    return StatementSigner(settings.signing_key_bytes(), settings.origin)


def _story(one: SigningKey, in_use: bool) -> str:
    ended = [("retired", one.retired_at), ("revoked from", one.revoked_at)]
    told = ["signs here" if in_use else "", f"since {_written(one.created_at)}"]
    told += [f"{what} {_written(when)}" for what, when in ended if when is not None]
    return ", ".join(filter(None, told)) + (f": {one.reason}" if one.reason else "")


def _written(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _past(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise typer.BadParameter("a time with its zone, such as 2030-03-31T12:00:00Z", param_hint="--at")
    if moment > datetime.now(UTC):
        raise typer.BadParameter("a key is not revoked in advance: retire it when the time has come", param_hint="--at")
    return moment.astimezone(UTC)


def _one_line(text: str) -> str:
    line = text.strip()
    if not 0 < len(line) <= LONGEST_REASON or not line.isprintable():
        raise typer.BadParameter(f"one line of up to {LONGEST_REASON} characters", param_hint="--reason")
    return line


def _say(sentence: str) -> None:
    """To standard error: what a script reads is only the key or the list."""
    Console(stderr=True).print(sentence, highlight=False, soft_wrap=True)
