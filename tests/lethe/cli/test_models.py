"""`lethe model check` and `lethe model polish` on files, as before registration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from lethe.cli.main import app
from ml.models.linear import LinearRegression
from ml.models.mlp import MLP
from ml.posteriors.mean_field import MeanFieldGaussian

CONFIG = {"dimensions": 2, "noise_std": 1.0, "prior_std": 1.0}
FAMILY = LinearRegression(**CONFIG)  # type: ignore[arg-type]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Return manifest, posterior and records of a model half a width short of its optimum."""
    data = torch.randn(50, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    optimum = FAMILY.optimum(data)
    (tmp_path / "manifest.json").write_text(json.dumps({"family": "linear-regression", "config": CONFIG}))
    unfinished = MeanFieldGaussian(optimum.mean + 0.5 * optimum.std, optimum.std)
    (tmp_path / "posterior.safetensors").write_bytes(unfinished.to_bytes())
    save_file({"x": data}, tmp_path / "records.safetensors")
    return [str(tmp_path / name) for name in ("manifest.json", "posterior.safetensors", "records.safetensors")]


def test_check_advises_polish_and_polish_makes_it_ready(files: list[str], tmp_path: Path) -> None:
    runner = CliRunner()
    before = runner.invoke(app, ["model", "check", *files, "--json"])
    assert before.exit_code == 1
    readiness = json.loads(before.stdout)
    assert readiness["ready"] is False
    assert "lethe model polish" in readiness["advice"][0]
    polished = str(tmp_path / "polished.safetensors")
    assert runner.invoke(app, ["model", "polish", *files, "--out", polished]).exit_code == 0
    after = runner.invoke(app, ["model", "check", files[0], polished, files[2], "--json"])
    assert after.exit_code == 0
    assert json.loads(after.stdout)["distance"] < 1e-12
    assert "proved" in runner.invoke(app, ["model", "check", files[0], polished, files[2]]).stdout


@pytest.mark.soak
def test_polish_brings_a_network_closer_to_convergence(tmp_path: Path) -> None:
    config = {"dimensions": 2, "hidden": 3, "classes": 2}
    data = torch.randn(200, 3, generator=torch.Generator().manual_seed(1))
    data[:, -1] = (data[:, 0] > 0).float()
    (tmp_path / "manifest.json").write_text(json.dumps({"family": "mlp", "config": config}))
    (tmp_path / "posterior.safetensors").write_bytes(MLP(2, 3, 2).initial(seed=1).to_bytes())
    save_file({"x": data}, tmp_path / "records.safetensors")
    names = [str(tmp_path / name) for name in ("manifest.json", "posterior.safetensors", "records.safetensors")]
    polished, runner = str(tmp_path / "polished.safetensors"), CliRunner()
    assert runner.invoke(app, ["model", "polish", *names, "--out", polished]).exit_code == 0
    before, after = (
        json.loads(runner.invoke(app, ["model", "check", names[0], posterior, names[2], "--json"]).stdout)
        for posterior in (names[1], polished)
    )
    assert before["levels"] == after["levels"] == ["estimated"]
    assert after["numbers"]["residual"] < before["numbers"]["residual"]


def test_samples_are_checked_but_not_polished(files: list[str], tmp_path: Path) -> None:
    samples = str(tmp_path / "samples.safetensors")
    draws = torch.randn(40, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    save_file({"samples": draws, "chain": torch.arange(40) % 2}, samples)
    runner = CliRunner()
    checked = runner.invoke(app, ["model", "check", files[0], samples, files[2], "--json"])
    assert checked.exit_code == 1
    assert json.loads(checked.stdout)["levels"] == []
    refused = runner.invoke(app, ["model", "polish", files[0], samples, files[2]])
    assert refused.exit_code == 2
    assert "run the chains longer" in " ".join(refused.stderr.split())


def test_a_manifest_that_names_the_other_kind_is_refused(files: list[str], tmp_path: Path) -> None:
    manifest = tmp_path / "other.json"
    runner = CliRunner()
    for kind, code in (("variational", 1), ("samples", 2)):
        manifest.write_text(json.dumps({"family": "linear-regression", "posterior": kind, "config": CONFIG}))
        assert runner.invoke(app, ["model", "check", str(manifest), *files[1:]]).exit_code == code


def test_files_that_do_not_fit_are_refused(files: list[str]) -> None:
    runner = CliRunner()
    manifest, posterior, records = files
    for arguments, message in (
        ([records, posterior, records], "is not a manifest"),
        ([manifest, manifest, records], "safetensors"),
        ([manifest, posterior, posterior], "save the training rows"),
    ):
        refused = runner.invoke(app, ["model", "check", *arguments])
        assert refused.exit_code == 2
        assert message in " ".join(refused.stderr.replace("│", " ").split())
