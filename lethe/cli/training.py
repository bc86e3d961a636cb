"""`lethe train`: train models that forget exactly."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lethe.cli.options import RecordsFile, SubjectsFile
from lethe.cli.output import out

if TYPE_CHECKING:
    from torch import Tensor

training = typer.Typer(help="Train models that forget exactly.", no_args_is_help=True)

POLICY = {"epsilon": 1e-6, "level": "retrained", "rungs": ["retrain"]}
"""Every certificate of an ensemble states an epsilon of 0, below any that a policy can ask for."""


@training.callback()
def _commands() -> None:
    """Make `ensemble` a command of its own, although it is the only one."""


@training.command("ensemble")
def train_ensemble(
    records: RecordsFile,
    subjects: SubjectsFile,
    family: Annotated[str, typer.Option(help="mlp or lenet5.")] = "mlp",
    shards: Annotated[
        int, typer.Option(min=1, max=1000, help="Members. A deletion trains about one in so many parts again.")
    ] = 8,
    hidden: Annotated[int, typer.Option(min=1, help="Hidden units of an mlp.")] = 32,
    prior_std: Annotated[float, typer.Option(help="Width of the prior of each weight.")] = 0.15,
    epochs: Annotated[int, typer.Option(min=1, max=1000, help="Passes of a member over its rows.")] = 20,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows in a minibatch.")] = 64,
    learning_rate: Annotated[float, typer.Option(help="First learning rate of Adam.")] = 2e-3,
    prior_share: Annotated[
        float | None,
        typer.Option(
            max=1, help="Power of the prior in a member's posterior. [default: 1/shards²]", show_default=False
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first member; the others count on from it.")] = 0,
    name: Annotated[str, typer.Option(help="Name of the model in the manifest.")] = "ensemble",
    folder: Annotated[Path, typer.Option("--out", help="Folder for posterior.safetensors and manifest.json.")] = Path(
        "ensemble"
    ),
) -> None:
    """Train an ensemble of networks, each on people of its own, and write what registration needs.

    People are assigned to members by a keyed hash of their identity. The key is thrown away.
    """
    import torch

    import ml
    from lethe.cli.models import read_owners, read_rows
    from lethe.progress import stages
    from ml.inference.members import default_prior_share
    from ml.inference.members import train_ensemble as train
    from ml.inference.shards import assign_shards
    from ml.posteriors.ensemble import Recipe

    torch.set_num_threads(1)  # as workers do for networks, so that they train a member to the same bits
    try:
        rows, owners = read_rows(records), read_owners(subjects)
        config = _config(family, rows, hidden, prior_std)
        network = ml.build(family, config)
        if not isinstance(network, ml.Network) or len(owners) != len(rows):
            raise ml.InvalidInput(
                f"{len(owners)} subjects for {len(rows)} rows of family {family}: list one for each row"
            )
        shard = assign_shards(owners, shards, key=secrets.token_bytes(32))
        recipe = Recipe(epochs, batch_size, learning_rate, prior_share or default_prior_share(shards))
        total = sum(recipe.iterations(int(count)) for count in torch.bincount(shard))
        with stages() as bar:
            report = bar("training")
            ensemble = train(network, rows, shard, recipe, seed, lambda step: report(f"{shards} members", step / total))
    except ml.ForgettingError as error:
        raise typer.BadParameter(str(error)) from None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "posterior.safetensors").write_bytes(ensemble.to_bytes())
    manifest = {"name": name, "family": family, "posterior": "ensemble", "config": config, "policy": POLICY}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    files = f"{folder}/manifest.json {folder}/posterior.safetensors {records} {subjects}"
    out.print(
        f"Trained {shards} members. Register them:\nlethe model register {files}", highlight=False, soft_wrap=True
    )


def _config(family: str, rows: Tensor, hidden: int, prior_std: float) -> dict[str, Any]:
    if family == "lenet5":
        return {"prior_std": prior_std}
    if family != "mlp":
        raise typer.BadParameter(f"{family!r} has no ensemble: choose mlp or lenet5")
    dimensions, classes = rows.shape[1] - 1, int(rows[:, -1].max()) + 1
    return {"dimensions": dimensions, "hidden": hidden, "classes": classes, "prior_std": prior_std}
