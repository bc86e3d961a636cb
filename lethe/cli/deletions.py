"""`lethe delete`, `status` and `certificate`: the API from the command line, for people and for scripts."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from lethe.client import KEYS, POLL_SECONDS, TERMINAL, Client

Url = Annotated[str, typer.Option("--url", envvar="LETHE_URL", help="Where the API is.")]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="LETHE_TOKEN",
        help="A bearer token. [default: that of `lethe up`, from the data folder]",
        show_default=False,
    ),
]
DataDir = Annotated[Path, typer.Option("--data-dir", envvar="LETHE_DATA_DIR", help="Where `lethe up` keeps tokens.")]
AsJson = Annotated[bool, typer.Option("--json", help="For machines.")]
ManifestFile = Annotated[
    Path, typer.Argument(exists=True, dir_okay=False, help="JSON with family and config, as for registration.")
]
PosteriorFile = Annotated[
    Path, typer.Argument(exists=True, dir_okay=False, help="safetensors: mean and std, or samples and chain.")
]
RecordsFile = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="safetensors: the training rows as x.")]


class Form(StrEnum):
    JSON = "json"
    PDF = "pdf"
    HTML = "html"


LOCAL, FOLDER = "http://127.0.0.1:8000", Path(".lethe")


def delete(
    identities: Annotated[
        list[str],
        typer.Argument(
            metavar="TYPE=VALUE...",
            help="Whom: email=ada@example.org. With - they are read from standard input, one a line, and stay out of "
            "the shell's history.",
        ),
    ],
    regulation: Annotated[str, typer.Option(help="gdpr or ccpa.")] = "gdpr",
    models: Annotated[list[str] | None, typer.Option("--model", help="Only this model; repeat it for several.")] = None,
    key: Annotated[str | None, typer.Option(help="An idempotency key: the same again changes nothing.")] = None,
    receipt: Annotated[Path | None, typer.Option(help="Write the signed receipt there.")] = None,
    url: Url = LOCAL,
    token: Token = None,
    data_dir: DataDir = FOLDER,
    as_json: AsJson = False,
) -> None:
    """Ask for a deletion. Prints its id, with which `lethe status` and `lethe certificate` go on."""
    subjects = [_identity(text) for text in _given(identities)]
    with talking(url, token, data_dir, "compliance") as client:
        found = client.delete(subjects, models, regulation, key)
    if receipt is not None:
        receipt.write_text(found["receipt"])
    _tell(found, as_json, lambda: _show(found))


def status(
    deletion_id: Annotated[str, typer.Argument(help="As `lethe delete` printed it.")],
    watch: Annotated[bool, typer.Option("--watch", help="Until it has ended.")] = False,
    url: Url = LOCAL,
    token: Token = None,
    data_dir: DataDir = FOLDER,
    as_json: AsJson = False,
) -> None:
    """How far a deletion is. Exits with 1 if it has failed."""
    with talking(url, token, data_dir, "compliance") as client:
        found = client.deletion(deletion_id)
        if watch and found["status"] not in TERMINAL:
            found = _watched(client, found)
    _tell(found, as_json, lambda: _show(found))
    raise typer.Exit(1 if found["status"] == "failed" else 0)


def get_certificates(
    deletion_id: Annotated[str, typer.Argument(help="As `lethe delete` printed it.")],
    folder: Annotated[Path, typer.Option("--out", help="Where to put them.")] = Path(),
    form: Annotated[Form, typer.Option("--as", help="json to verify, pdf to print, html to read.")] = Form.JSON,
    url: Url = LOCAL,
    token: Token = None,
    data_dir: DataDir = FOLDER,
) -> None:
    """Download the certificates of a deletion, one for each model, and the keys to verify them with."""
    with talking(url, token, data_dir, "compliance") as client:
        files = client.download(deletion_id, folder, form)
    if not files:
        raise typer.BadParameter("none yet: the deletion has not ended. Try `lethe status --watch`.")
    for file in files:
        told = f"lethe verify {file} --key {folder / KEYS}" if form is Form.JSON else str(file)
        _out().print(told, highlight=False, soft_wrap=True)


def register_model(
    manifest: ManifestFile,
    posterior: PosteriorFile,
    records: RecordsFile,
    subjects: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="JSON list: whose each row is.")],
    never_seen: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="safetensors: rows that it was not trained on.")
    ] = None,
    url: Url = LOCAL,
    token: Token = None,
    data_dir: DataDir = FOLDER,
    as_json: AsJson = False,
) -> None:
    """Register a model and tell what can be certified of it. `lethe model check` tells the same without a service."""
    try:
        described, people = json.loads(manifest.read_text()), json.loads(subjects.read_text())
    except ValueError as error:
        raise typer.BadParameter(f"manifest and subjects must be JSON ({type(error).__name__})") from None
    with talking(url, token, data_dir, "engineer") as client, ExitStack() as opened:
        parameters, rows = (opened.enter_context(path.open("rb")) for path in (posterior, records))
        unseen = opened.enter_context(never_seen.open("rb")) if never_seen else None
        model = client.register_model(described, parameters, rows, people, unseen)
        with Console(stderr=True).status("a worker looks at it"):
            readiness = client.readiness(model["id"])
    _tell({**model, "readiness": readiness}, as_json, lambda: _show_model(model["id"], readiness))


@contextmanager
def talking(url: str, token: str | None, data_dir: Path, role: str) -> Iterator[Client]:
    """A client whose refusals, and whose absence, are told in one line."""
    import httpx

    from lethe.client import LetheError

    try:
        with Client(url, token or _local_token(data_dir, role), patience=2.0) as client:
            yield client
    except LetheError as error:
        raise typer.BadParameter(str(error)) from None
    except httpx.TransportError as error:
        raise typer.BadParameter(f"nobody answers at {url} ({type(error).__name__}): is `lethe up` running?") from None


def _local_token(data_dir: Path, role: str) -> str:
    path = data_dir / "tokens" / f"{role}.token"
    if not path.exists():
        raise typer.BadParameter(
            f"no token: pass --token or LETHE_TOKEN, or start `lethe up`, which leaves one in {path}"
        )
    return path.read_text().strip()


def _given(identities: list[str]) -> list[str]:
    if identities == ["-"]:
        return [line.strip() for line in sys.stdin if line.strip()]
    return identities


def _identity(text: str) -> dict[str, str]:
    kind, separator, value = text.partition("=")
    if not separator or not kind or not value:
        # Without what was typed: it may be an identity, and errors are logged.
        raise typer.BadParameter("an identity is TYPE=VALUE, such as email=ada@example.org")
    return {"identity_type": kind, "identity_value": value}


def _watched(client: Client, found: dict[str, Any]) -> dict[str, Any]:
    with Live(_table(found), console=Console(stderr=True), transient=True) as live:
        while found["status"] not in TERMINAL:
            time.sleep(POLL_SECONDS)
            found = client.deletion(found["id"])
            live.update(_table(found))
    return found


def _tell(found: dict[str, Any], as_json: bool, show: Callable[[], None]) -> None:
    if as_json:
        typer.echo(json.dumps(found))
    else:
        show()


def _show(found: dict[str, Any]) -> None:
    _out().print(_table(found))
    _out().print(found["outcome"] or found["what_happens_next"], highlight=False)


def _show_model(model_id: str, readiness: dict[str, Any]) -> None:
    levels = ", ".join(readiness["levels"]) or "none but by retraining"
    for line in (model_id, *readiness["findings"], f"certificate levels: {levels}"):
        _out().print(line, highlight=False, soft_wrap=True)
    for advice in readiness["advice"]:
        _out().print(f"[yellow]to do[/yellow]: {advice}", highlight=False, soft_wrap=True)


def _table(found: dict[str, Any]) -> Table:
    left = "" if found["days_left"] is None else f", {found['days_left']} days left"
    table = Table(title=f"{found['id']}: {found['status']}, due {found['due_at'][:10]}{left}")
    for heading in ("model", "status", "phase", "attempts", "failure"):
        table.add_column(heading, overflow="fold")
    for one in found["models"]:
        phase = "" if one["phase"] is None else f"{one['phase']} {one['percent']:.0f} %"
        table.add_row(one["model_id"], one["status"], phase, str(one["attempts"]), one["failure"] or "")
    return table


def _out() -> Console:
    return Console()
