from __future__ import annotations

from pathlib import Path

from benchmarks.paper.gmm import Comparison, Way
from benchmarks.paper.gmm_figure import LABELS, draw

CENTRES = [[2.0, 2.0], [2.0, -2.0], [-2.0, 2.0], [-2.0, -2.0]]


def test_the_figure_has_a_column_per_method_and_a_label_per_way(tmp_path: Path) -> None:
    ways = {name: Way(name, 0.1, 0.1, 1.0, CENTRES) for name in LABELS}
    comparisons = {case: Comparison(case, 40, 2000, ways, 0.0, 0.0, None) for case in ("gmm-vi", "gmm-sgld")}
    png, svg = draw(comparisons, seed=1, folder=tmp_path)
    assert (png.name, svg.name) == ("gmm.png", "gmm.svg")
    assert png.read_bytes().startswith(b"\x89PNG")
    drawing = svg.read_text(encoding="utf-8")
    assert drawing.count('id="axes_') == 4
    for text in ("SGLD: trained on all", "40 forgotten", *LABELS.values()):
        assert f"<!-- {text} -->" in drawing
