"""`lethe model`: check, polish, register and refresh models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lethe.cli.options import (
    DEFAULT_DATA_DIR,
    DEFAULT_URL,
    AsJson,
    ManifestFile,
    PosteriorFile,
    RecordsFile,
    SubjectsFile,
    Token,
    TokenFolder,
    Url,
)
from lethe.cli.output import out, print_result
from vocabulary.families import is_network

models = typer.Typer(help="Check, polish, register and refresh models.", no_args_is_help=True)


@models.command("check")
def check(manifest: ManifestFile, posterior: PosteriorFile, records: RecordsFile, as_json: AsJson = False) -> None:
    """Report how converged a posterior is, which certificate levels it can reach, and how to reach more.

    For samples of a network it also says which reference is in reach, and whether the policy lacks the rung reweight.
    Exits with 0 if it is ready, 1 if there is advice to follow, 2 if the files do not fit together.
    """
    from lethe.cli.models import ModelFiles
    from ml.errors import ForgettingError

    try:
        readiness = ModelFiles.read(manifest, posterior, records).check()
    except ForgettingError as error:
        raise typer.BadParameter(str(error)) from None
    values = readiness.to_dict()
    lines = [*_describe(values), *advise_on_policy(json.loads(manifest.read_text()))]
    print_result(values, lines, as_json)
    raise typer.Exit(0 if readiness.ready else 1)


@models.command("polish")
def polish(
    manifest: ManifestFile,
    posterior: PosteriorFile,
    records: RecordsFile,
    file: Annotated[Path, typer.Option("--out", help="File for the converged posterior.")] = Path(
        "polished.safetensors"
    ),
) -> None:
    """Train a posterior to the optimum of its basin, so that it can reach every certificate level."""
    from lethe.cli.models import ModelFiles
    from ml.errors import ForgettingError

    try:
        files = ModelFiles.read(manifest, posterior, records)
        with Console(stderr=True).status("polishing") as status:
            polished = files.polish(lambda step: status.update(f"polishing: step {step}"))
    except ForgettingError as error:
        raise typer.BadParameter(str(error)) from None
    file.write_bytes(polished.to_bytes())
    out.print(f"Written to {file}. Check it with `lethe model check`, then register it.", highlight=False)


@models.command("register")
def register(
    manifest: ManifestFile,
    posterior: PosteriorFile,
    records: RecordsFile,
    subjects: SubjectsFile,
    never_seen: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="safetensors: rows that were not trained on.")
    ] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    data_dir: TokenFolder = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Register a model and report its readiness. `lethe model check` reports it without a service."""
    from lethe.cli.connection import connect

    try:
        description, owners = json.loads(manifest.read_text()), json.loads(subjects.read_text())
    except ValueError as error:
        raise typer.BadParameter(f"manifest and subjects must be JSON ({type(error).__name__})") from None
    with connect(url, token, data_dir, "engineer") as client, ExitStack() as files:
        parameters, rows = (files.enter_context(path.open("rb")) for path in (posterior, records))
        unseen = files.enter_context(never_seen.open("rb")) if never_seen else None
        model = client.register_model(description, parameters, rows, owners, unseen)
        with Console(stderr=True).status("waiting for a worker to check it"):
            readiness = client.readiness(model["id"])
    lines = [model["id"], *_describe(readiness), *advise_on_policy(model)]
    print_result({**model, "readiness": readiness}, lines, as_json)


@models.command("refresh")
def refresh(
    model_id: Annotated[str, typer.Argument(help="Id of the model, as `lethe model register` printed it.")],
    url: Url = DEFAULT_URL,
    token: Token = None,
    data_dir: TokenFolder = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Have an idle worker continue the chains of a sample set, so that its draws have even weights again.

    Workers do so by themselves below the share of draws in LETHE_REFRESH_BELOW. Deletions come first.
    """
    from lethe.cli.connection import connect

    with connect(url, token, data_dir, "operator") as client:
        requested = client.refresh(model_id)
    lines = [f"{requested['status']}: GET /api/v1/jobs/{requested['id']} and the model show its progress"]
    print_result(requested, lines, as_json)


def _describe(readiness: dict[str, Any]) -> list[str]:
    levels = ", ".join(readiness["levels"]) or "none without retraining"
    lines = [*readiness["findings"], f"certificate levels: [bold]{levels}[/bold]"]
    return lines + [f"[yellow]to do[/yellow]: {advice}" for advice in readiness["advice"]]


def advise_on_policy(manifest: Mapping[str, Any]) -> list[str]:
    """Return what the policy of a network's samples lacks for deletions that do not sample anew."""
    is_sampled_network = manifest.get("posterior") == "samples" and is_network(manifest["family"])
    if not is_sampled_network or "reweight" in manifest.get("policy", {}).get("rungs", ()):
        return []
    return [
        "[yellow]policy[/yellow]: it does not name the rung reweight, which reads the forgotten rows alone: deletions "
        "sample anew. Its weights reveal these rows, so serve predictions from `GET /api/v1/models/{id}/draws`"
    ]
