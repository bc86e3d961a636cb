"""An ensemble on a real service with two workers: trained by the command, registered, and made to forget people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from examples.models import Example, network_example, person
from lethe import Client
from lethe.cli.main import app
from lethe.verify import Verified, verify
from ml.inference.members import train_member
from ml.models.mlp import MLP
from ml.posteriors.ensemble import Ensemble
from tests.end_to_end.conftest import Running, embedded_environment, starting

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Use one thread, as workers do: another number could round otherwise."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Running]:
    folder = tmp_path / "up"
    folder.mkdir()
    with starting(folder, {**embedded_environment(), "LETHE_LEASE_SECONDS": "3"}, workers=2) as running:
        yield running


def train(example: Example, folder: Path) -> tuple[dict[str, object], Ensemble, list[dict[str, str]]]:
    """Run `lethe train ensemble`; return manifest, ensemble and subjects."""
    subjects = [person(row) for row in range(len(example.data))]
    save_file({"x": example.data}, folder / "records.safetensors")
    (folder / "subjects.json").write_text(json.dumps(subjects))
    files = [str(folder / "records.safetensors"), str(folder / "subjects.json")]
    options = ["--shards", "4", "--hidden", "4", "--epochs", "5", "--prior-std", "0.3", "--out", str(folder)]
    trained = CliRunner().invoke(app, ["train", "ensemble", *files, *options])
    assert trained.exit_code == 0, trained.output
    ensemble = Ensemble.from_bytes((folder / "posterior.safetensors").read_bytes())
    return json.loads((folder / "manifest.json").read_text()), ensemble, subjects


def forget_rows(engineer: Client, compliance: Client, model_id: str, rows: list[int]) -> tuple[Verified, Ensemble]:
    ended = compliance.wait(compliance.delete([person(row) for row in rows], models=[model_id])["id"])
    assert ended["status"] == "completed", ended
    after = engineer.posterior(model_id)
    certificate = compliance.certificate(ended["models"][0]["certificate"])
    return verify(certificate, compliance.keys(), after), Ensemble.from_bytes(after)


def test_an_ensemble_forgets_people_exactly(up: Running, tmp_path: Path) -> None:
    example = network_example()
    manifest, before, subjects = train(example, tmp_path)
    with up.client("engineer") as engineer, up.client("compliance") as compliance:
        with (
            (tmp_path / "posterior.safetensors").open("rb") as posterior,
            (tmp_path / "records.safetensors").open("rb") as records,
        ):
            model_id = engineer.register_model(manifest, posterior, records, subjects)["id"]
        assert engineer.readiness(model_id)["levels"] == ["retrained"]
        checked, after = forget_rows(engineer, compliance, model_id, [0])
        rows_of_each = [int(after.rows_of(member)[0]) + 4 for member in range(4)]
        later, last = forget_rows(engineer, compliance, model_id, rows_of_each)
    bound, reader = checked.predicate["bound"], int(before.shard[0])
    assert (bound["level"], bound["epsilon"], bound["epsilon_reverse"]) == ("retrained", 0.0, 0.0)
    assert [member["member"] for member in bound["constants"]["retrained"]] == [reader]
    for member in range(4):
        rows = example.data[4:][after.shard == member]
        scratch = train_member(MLP(**example.config), rows, int(before.seed[member]), before.recipe)
        assert torch.equal(after.members[member], scratch)
        assert torch.equal(after.members[member], before.members[member]) == (member != reader)
    assert [member["member"] for member in later.predicate["bound"]["constants"]["retrained"]] == [0, 1, 2, 3]
    assert not (last.members == after.members).all(1).any()
