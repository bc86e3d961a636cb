"""`lethe log`: keep a copy of the transparency log, and find out whether anybody rewrote it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lethe.cli.deletions import FOLDER, LOCAL, AsJson, DataDir, Token, Url, talking
from lethe.log_audit import CHECKPOINTS, ENTRIES, KEYS, Replayed, audit_mirror, entry_count, facts, notes_in, told
from lethe.verify import Rejected

log = typer.Typer(help="The transparency log: mirror it, replay it.", no_args_is_help=True)
out = Console()
AT_ONCE = 1000


@log.command()
def mirror(
    folder: Annotated[Path, typer.Argument(file_okay=False, help="Where the copy is, or is to be.")],
    url: Url = LOCAL,
    token: Token = None,
    data_dir: DataDir = FOLDER,
) -> None:
    """Copy the log into a folder, or bring the copy there up to date. Needs the token of an auditor.

    Checkpoints of earlier runs are kept: with them `lethe log audit` notices whatever was rewritten in between.
    """
    out.print(f"{_mirror(folder, url, token, data_dir)} entries in {folder}", highlight=False)


@log.command()
def audit(
    place: Annotated[str, typer.Argument(metavar="DIR_OR_URL", help="A mirror, or the API itself.")],
    key: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="The keys to trust. [default: the log's own list]")
    ] = None,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option(exists=True, dir_okay=False, help="Checkpoints that you kept or that were published; repeatable."),
    ] = None,
    token: Token = None,
    data_dir: DataDir = FOLDER,
    as_json: AsJson = False,
) -> None:
    """Replay the whole log: hash every entry anew and compare with every checkpoint at hand.

    Exits with 0 if it holds, 1 if it was rewritten or does not fit, 2 if something cannot be read.
    """
    published = [note for path in checkpoint or [] for note in notes_in(path.read_text())]
    keys = key.read_bytes() if key else None
    try:
        found = _audited(place, keys, published, token, data_dir)
    except Rejected as reason:
        out.print_json(data={"verified": False, "reason": str(reason)}) if as_json else out.print(
            f"[bold red]rejected[/bold red]: {reason}", highlight=False
        )
        raise typer.Exit(1) from None
    except OSError as error:
        out.print(f"[bold red]cannot read[/bold red] {error.filename}: {error.strerror}", highlight=False)
        raise typer.Exit(2) from None
    if as_json:
        out.print_json(facts(found))
        return
    for line in [*(f"[green]✓[/green] {line}" for line in told(found)), "[bold green]verified[/bold green]"]:
        out.print(line, highlight=False)


def _audited(place: str, keys: bytes | None, published: list[str], token: str | None, data_dir: Path) -> Replayed:
    if not place.startswith(("http://", "https://")):
        return audit_mirror(Path(place), keys, published)
    with tempfile.TemporaryDirectory(prefix="lethe-log-") as folder:
        _mirror(Path(folder), place, token, data_dir)
        return audit_mirror(Path(folder), keys, published)


def _mirror(folder: Path, url: str, token: str | None, data_dir: Path) -> int:
    """Checkpoint first: the entries that come after it are for the next time."""
    (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    with talking(url, token, data_dir, "auditor") as client:
        note = client.checkpoint()
        size, have = int(note.split("\n")[1]), entry_count(folder)
        with (folder / ENTRIES).open("ab") as entries:
            while have < size:
                lines = client.log_entries(have, min(AT_ONCE, size - have))
                if not lines:
                    raise Rejected(f"the log says {size} entries and gives only {have}")
                entries.writelines(line + b"\n" for line in lines)
                have += len(lines)
        (folder / KEYS).write_bytes(client.keys())
    (folder / CHECKPOINTS / f"{size}.txt").write_text(note)
    return size
