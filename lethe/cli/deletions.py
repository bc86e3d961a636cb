"""`lethe delete`, `lethe status` and `lethe certificate get`: deletions through the API."""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from lethe.cli.connection import connect
from lethe.cli.options import DEFAULT_DATA_DIR, DEFAULT_URL, AsJson, Token, TokenFolder, Url
from lethe.cli.output import out, print_result
from lethe.client import KEYS, POLL_SECONDS, TERMINAL, Client

DeletionId = Annotated[str, typer.Argument(help="Id of the deletion, as `lethe delete` printed it.")]


class Form(StrEnum):
    JSON = "json"
    PDF = "pdf"
    HTML = "html"


def delete(
    identities: Annotated[
        list[str],
        typer.Argument(
            metavar="TYPE=VALUE...",
            help="Identities to delete, as TYPE=VALUE, such as email=ada@example.org. With - they are read from "
            "standard input, one per line, which keeps them out of the shell's history.",
        ),
    ],
    regulation: Annotated[str, typer.Option(help="gdpr or ccpa.")] = "gdpr",
    models: Annotated[list[str] | None, typer.Option("--model", help="Only this model; repeatable.")] = None,
    key: Annotated[str | None, typer.Option(help="Idempotency key: repeating the request changes nothing.")] = None,
    receipt: Annotated[Path | None, typer.Option(help="Write the signed receipt to this file.")] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    data_dir: TokenFolder = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Request a deletion and print its id, for `lethe status` and `lethe certificate get`."""
    subjects = [_parse_identity(text) for text in _read_identities(identities)]
    with connect(url, token, data_dir, "compliance") as client:
        deletion = client.delete(subjects, models, regulation, key)
    if receipt is not None:
        receipt.write_text(deletion["receipt"])
    _print_deletion(deletion, as_json)


def status(
    deletion_id: DeletionId,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the deletion until it has ended.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    data_dir: TokenFolder = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Print the status of a deletion. Exits with 1 if it has failed."""
    with connect(url, token, data_dir, "compliance") as client:
        deletion = client.deletion(deletion_id)
        if watch and deletion["status"] not in TERMINAL:
            deletion = _watch(client, deletion)
    _print_deletion(deletion, as_json)
    raise typer.Exit(1 if deletion["status"] == "failed" else 0)


def get_certificates(
    deletion_id: DeletionId,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the files.")] = Path(),
    form: Annotated[Form, typer.Option("--as", help="json to verify, pdf to print, html to read.")] = Form.JSON,
    force: Annotated[bool, typer.Option("--force", help="Replace certificates that are there already.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    data_dir: TokenFolder = DEFAULT_DATA_DIR,
) -> None:
    """Download the certificates of a deletion, one per model, and the keys that verify them."""
    with connect(url, token, data_dir, "compliance") as client:
        try:
            files = client.download(deletion_id, folder, form, replace=force)
        except FileExistsError as error:
            raise typer.BadParameter(f"{error}: choose another --out, or replace it with --force") from None
    if not files:
        raise typer.BadParameter("none yet: the deletion has not ended. Try `lethe status --watch`.")
    for file in files:
        line = f"lethe verify {file} --key {folder / KEYS}" if form is Form.JSON else str(file)
        out.print(line, highlight=False, soft_wrap=True)


def _read_identities(arguments: list[str]) -> list[str]:
    if arguments == ["-"]:
        return [line.strip() for line in sys.stdin if line.strip()]
    return arguments


def _parse_identity(text: str) -> dict[str, str]:
    kind, separator, value = text.partition("=")
    if not separator or not kind or not value:
        # The message leaves the text out: it may be an identity, and errors are logged.
        raise typer.BadParameter("an identity is TYPE=VALUE, such as email=ada@example.org")
    return {"identity_type": kind, "identity_value": value}


def _watch(client: Client, deletion: dict[str, Any]) -> dict[str, Any]:
    with Live(_summary(deletion), console=Console(stderr=True), transient=True) as live:
        while deletion["status"] not in TERMINAL:
            time.sleep(POLL_SECONDS)
            deletion = client.deletion(deletion["id"])
            live.update(_summary(deletion))
    return deletion


def _print_deletion(deletion: dict[str, Any], as_json: bool) -> None:
    print_result(deletion, [_summary(deletion), deletion["outcome"] or deletion["what_happens_next"]], as_json)


def _summary(deletion: dict[str, Any]) -> Table | str:
    """Return a table of the deletion's models, or a line as long as none is shown."""
    days_left = "" if deletion["days_left"] is None else f", {deletion['days_left']} days left"
    title = f"{deletion['id']}: {deletion['status']}, due {deletion['due_at'][:10]}{days_left}"
    if not deletion["models"]:
        return title
    table = Table(title=title)
    for heading in ("model", "status", "phase", "attempts", "failure"):
        table.add_column(heading, overflow="fold")
    for model in deletion["models"]:
        phase = "" if model["phase"] is None else f"{model['phase']} {model['percent']:.0f} %"
        table.add_row(model["model_id"], model["status"], phase, str(model["attempts"]), model["failure"] or "")
    return table
