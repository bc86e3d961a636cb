"""`lethe train ensemble`: the files that it writes are those that registration takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter
from safetensors.torch import save_file
from typer.testing import CliRunner

from lethe.cli.main import app
from ml.inference.members import train_member
from ml.models.mlp import MLP
from ml.posteriors.ensemble import Ensemble, Recipe
from service.schemas.models import BuiltInManifest, Manifest


def labelled_rows() -> torch.Tensor:
    rows = torch.randn(180, 4, generator=torch.Generator().manual_seed(1))
    rows[:, -1] = (rows[:, 0] > 0).float()
    return rows


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Return records and subjects: 180 rows of 60 people, who spell their addresses in two ways."""
    save_file({"x": labelled_rows()}, tmp_path / "records.safetensors")
    spellings = [f"{'Person' if row % 3 else 'person'}-{row // 3}@example.org" for row in range(180)]
    subjects = [{"identity_type": "email", "identity_value": spelling} for spelling in spellings]
    (tmp_path / "subjects.json").write_text(json.dumps(subjects))
    return [str(tmp_path / "records.safetensors"), str(tmp_path / "subjects.json")]


def test_an_ensemble_is_trained_split_by_person_and_ready_to_register(files: list[str], tmp_path: Path) -> None:
    out = tmp_path / "ensemble"
    options = ["--shards", "3", "--hidden", "4", "--epochs", "2", "--batch-size", "8", "--seed", "7", "--out", str(out)]
    result = CliRunner().invoke(app, ["train", "ensemble", *files, *options])
    assert result.exit_code == 0, result.output
    assert f"lethe model register {out}/manifest.json" in result.stdout
    manifest = TypeAdapter[Manifest](Manifest).validate_json((out / "manifest.json").read_text())
    assert isinstance(manifest, BuiltInManifest)
    ensemble = Ensemble.from_bytes((out / "posterior.safetensors").read_bytes())
    assert manifest.plain_config == {
        "dimensions": 3,
        "hidden": 4,
        "classes": 2,
        "prior_std": 0.15,
        "activation": "relu",
    }
    assert ensemble.recipe == Recipe(2, 8, 2e-3, 1 / 9)
    assert (ensemble.shard.reshape(60, 3) == ensemble.shard[::3, None]).all()
    alone = train_member(MLP(3, 4, 2), labelled_rows()[ensemble.shard == 1], seed=8, recipe=ensemble.recipe)
    assert torch.equal(ensemble.members[1], alone)
    registered = [str(out / "manifest.json"), str(out / "posterior.safetensors"), files[0]]
    assert CliRunner().invoke(app, ["model", "check", *registered]).exit_code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--family", "oracle"], "mlp or lenet5"),
        (["--family", "lenet5", "--shards", "2"], "1025"),
        (["--shards", "900"], "fewer shards"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_words(files: list[str], options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["train", "ensemble", *files, *options])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_subjects_have_to_be_one_for_each_row(files: list[str], tmp_path: Path) -> None:
    for content, message in (("[]", "0 subjects for 180 rows"), ("{", "not a list"), ('["a"]', "not a list")):
        (tmp_path / "subjects.json").write_text(content)
        result = CliRunner().invoke(app, ["train", "ensemble", *files])
        assert result.exit_code == 2
        assert message in " ".join(result.output.replace("│", " ").split())
