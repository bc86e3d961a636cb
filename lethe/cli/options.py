"""Options and arguments shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_URL, DEFAULT_DATA_DIR = "http://127.0.0.1:8000", Path(".lethe")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

# Commands that talk to the API.
Url = Annotated[str, typer.Option("--url", envvar="LETHE_URL", help="Address of the API.")]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="LETHE_TOKEN",
        help="Bearer token. Others on this host can read it here: set LETHE_TOKEN. "
        "[default: the one that `lethe up` left in the data folder]",
        show_default=False,
    ),
]
TokenFolder = Annotated[
    Path, typer.Option("--data-dir", envvar="LETHE_DATA_DIR", help="Data folder of `lethe up`, for its tokens.")
]

# Commands that open the database themselves.
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Data folder of the embedded default. [default: .lethe]", show_default=False),
]

ManifestFile = Annotated[
    Path, typer.Argument(exists=True, dir_okay=False, help="JSON with family and config, as for registration.")
]
PosteriorFile = Annotated[
    Path,
    typer.Argument(exists=True, dir_okay=False, help="safetensors: mean and std, samples and chain, or an ensemble."),
]
SubjectsFile = Annotated[
    Path, typer.Argument(exists=True, dir_okay=False, help="JSON list: the identity that owns each row.")
]
RecordsFile = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="safetensors: the training rows as x.")]
