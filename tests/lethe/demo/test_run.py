"""Parts of the demo; tests/end_to_end/test_demo.py runs it as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rich.console import Console
from rich.progress import Progress

from lethe.demo import run
from lethe.demo.run import PEOPLE, POINTS, Downloads, run_demo


@pytest.fixture(scope="module")
def model() -> run.TrainedModel:
    threads = torch.get_num_threads()
    with Progress(disable=True) as progress:
        trained = run._train(progress)
    torch.set_num_threads(threads)
    return trained


def test_each_person_owns_neighbouring_rows(model: run.TrainedModel) -> None:
    assert (len(model.points), len(model.people)) == (POINTS, PEOPLE)
    assert model.rows_of(3).tolist() == list(range(3 * POINTS // PEOPLE))
    assert len({person["identity_value"] for person in model.people}) == PEOPLE


def test_retraining_without_rows_moves_the_model(model: run.TrainedModel) -> None:
    _, same = run._retrain(model, torch.arange(0))
    _, retrained = run._retrain(model, model.rows_of(20))
    assert model.posterior.kl(same) < 1e-9
    assert model.posterior.kl(retrained) > 1.0


def test_a_certificate_that_does_not_verify_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    downloads = Downloads(certificates=[b"{}"], keys=b"{}", posterior=b"")
    assert run._verify_offline(downloads, Console()) is None
    assert "rejected" in capsys.readouterr().out


def test_a_service_that_does_not_start_ends_the_demo_with_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another `lethe up` holds the folder, so that the one of the demo refuses."""
    from lethe.local.supervisor import exclusive

    monkeypatch.setattr(run, "_train", lambda progress: None)
    with exclusive(tmp_path):
        assert run_demo(tmp_path, 1, Console(width=300)) == 1
    assert "The demo failed: lethe: Lethe already runs on" in capsys.readouterr().out
