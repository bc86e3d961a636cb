from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.certificates import sequence_report
from benchmarks.certificates.sequence import draw_anew
from benchmarks.certificates.sequence_report import bench_sequence, show
from ml.errors import InvalidInput


def test_steps_and_figure_are_written(tmp_path: Path) -> None:
    model, rows = sequence_report._build("logistic")
    samples = tmp_path / "samples.safetensors"
    samples.write_bytes(draw_anew(model, rows, seed=0).to_bytes())
    sequence = bench_sequence("logistic", 2, 0.0, "posterior", 0, samples, tmp_path)
    content = json.loads((tmp_path / "sequence-logistic.json").read_text())
    assert (content["people"], len(content["steps"]), content["certified"]) == (2, 2, 2)
    assert content["sampling_seconds"] is None
    assert (tmp_path / "sequence-logistic.png").exists()
    console = Console(width=80, record=True)
    console.print(show(sequence))
    assert "seconds a person" in console.export_text()


def test_an_unknown_family_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="logistic or mlp"):
        bench_sequence("forest", 2, 0.0, "posterior", 0, None, tmp_path)
