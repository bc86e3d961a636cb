from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.certificates.sequence import Sequence, Step
from benchmarks.certificates.sequence_figure import draw

STEPS = (Step(1, 0.9, 0.1, 0.2, 1.0), Step(2, 0.6, 0.1, 0.4, 1.0, refresh_seconds=5.0, ready=True))
REFUSED = (*STEPS, Step(3, 0.1, 0.9, None, 1.0))


@pytest.mark.parametrize("steps", [STEPS, REFUSED])
def test_the_figure_is_drawn(tmp_path: Path, steps: tuple[Step, ...]) -> None:
    sequence = Sequence("mlp", 10, 3, 100, "posterior", 0.7, None, STEPS)
    path = tmp_path / "new" / "sequence.png"
    draw(replace(sequence, steps=steps), path)
    assert path.read_bytes().startswith(b"\x89PNG")
