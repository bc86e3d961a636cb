"""`lethe log`: mirror the transparency log, and detect whether it was rewritten."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from lethe.cli.connection import connect
from lethe.cli.options import DEFAULT_DATA_DIR, DEFAULT_URL, AsJson, Token, TokenFolder, Url
from lethe.cli.output import out
from lethe.log_audit import (
    CHECKPOINTS,
    ENTRIES,
    KEYS,
    Replayed,
    audit_mirror,
    describe,
    entry_count,
    split_checkpoints,
    to_json,
)
from lethe.verify import Rejected

log = typer.Typer(help="Mirror and replay the transparency log.", no_args_is_help=True)
PAGE_SIZE = 1000


@log.command()
def mirror(
    folder: Annotated[Path, typer.Argument(file_okay=False, help="Folder of the copy; created if missing.")],
    url: Url = DEFAULT_URL,
    token: Token = None,
    data_dir: TokenFolder = DEFAULT_DATA_DIR,
) -> None:
    """Copy the log into a folder, or update the copy. Needs an auditor's token.

    Checkpoints of earlier runs are kept: with them `lethe log audit` detects what was rewritten since.
    """
    out.print(f"{_mirror(folder, url, token, data_dir)} entries in {folder}", highlight=False)


@log.command()
def audit(
    source: Annotated[str, typer.Argument(metavar="DIR_OR_URL", help="A mirror, or the address of the API.")],
    key: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Keys to trust. [default: the log's own list]"),
    ] = None,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option(exists=True, dir_okay=False, help="Checkpoints, kept or published elsewhere; repeatable."),
    ] = None,
    token: Token = None,
    data_dir: TokenFolder = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Replay the whole log: hash every entry and compare the tree with every available checkpoint.

    Exits with 0 if they match, 1 if they do not, 2 if a file cannot be read.
    """
    published = [note for path in checkpoint or [] for note in split_checkpoints(path.read_text())]
    keys = key.read_bytes() if key else None
    try:
        replayed = _audit(source, keys, published, token, data_dir)
    except Rejected as reason:
        out.print_json(data={"verified": False, "reason": str(reason)}) if as_json else out.print(
            f"[bold red]rejected[/bold red]: {reason}", highlight=False
        )
        raise typer.Exit(1) from None
    except OSError as error:
        out.print(f"[bold red]cannot read[/bold red] {error.filename}: {error.strerror}", highlight=False)
        raise typer.Exit(2) from None
    if as_json:
        out.print_json(to_json(replayed))
        return
    for line in [*(f"[green]✓[/green] {line}" for line in describe(replayed)), "[bold green]verified[/bold green]"]:
        out.print(line, highlight=False)


def _audit(source: str, keys: bytes | None, published: list[str], token: str | None, data_dir: Path) -> Replayed:
    if not source.startswith(("http://", "https://")):
        return audit_mirror(Path(source), keys, published)
    with tempfile.TemporaryDirectory(prefix="lethe-log-") as folder:
        _mirror(Path(folder), source, token, data_dir)
        return audit_mirror(Path(folder), keys, published)


def _mirror(folder: Path, url: str, token: str | None, data_dir: Path) -> int:
    """Fetch the checkpoint first, then the entries it covers. Later entries are fetched next time."""
    (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    with connect(url, token, data_dir, "auditor") as client:
        note = client.checkpoint()
        size, count = int(note.split("\n")[1]), entry_count(folder)
        with (folder / ENTRIES).open("ab") as entries:
            while count < size:
                lines = client.log_entries(count, min(PAGE_SIZE, size - count))
                if not lines:
                    raise Rejected(f"the checkpoint covers {size} entries, but the API returns only {count}")
                entries.writelines(line + b"\n" for line in lines)
                count += len(lines)
        (folder / KEYS).write_bytes(client.keys())
    (folder / CHECKPOINTS / f"{size}.txt").write_text(note)
    return size
