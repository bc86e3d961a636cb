from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes

from benchmarks.certificates import certify, certify_figure
from tests.benchmarks.certificates.test_certify import TRIAL


def test_the_figure_shows_every_ratio_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[float, float]] = []
    scatter = Axes.scatter

    def watched(axes: Axes, x: list[float], y: list[float], **named: Any) -> Any:
        drawn.extend(zip(x, y, strict=True))
        return scatter(axes, x, y, **named)

    monkeypatch.setattr(Axes, "scatter", watched)
    trials = [TRIAL, replace(TRIAL, kind="whole", kl=1e-7, epsilon=3e-7), replace(TRIAL, kl=0.0)]
    report = certify.summarise("some", trials, seed=4, epsilon=1e-3, seconds=1.0)
    paths = certify_figure.draw(report, trials, tmp_path)
    assert [path.name for path in paths] == ["certify-some.png", "certify-some.svg"]
    assert all(path.stat().st_size > 1000 for path in paths)
    assert drawn == [(1e-6, 2e-6), (1e-7, 3e-7)]
