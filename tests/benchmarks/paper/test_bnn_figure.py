from __future__ import annotations

from pathlib import Path

from benchmarks.paper.bnn import WAYS, NetworkComparison, NetworkWay, Score
from benchmarks.paper.bnn_figure import TITLES, draw


def comparison(removed: int, seed: int) -> NetworkComparison:
    ways = {name: NetworkWay(name, Score(10.0 + seed, 0.5, 5.0, 8.0, 0.4), 1.0) for name in WAYS}
    return NetworkComparison("lenet-vi", removed, 500, seed, ways, "shift", 1.0, 0.1, 0.5)


def test_the_figure_has_a_panel_per_method_and_a_curve_per_set_and_way(tmp_path: Path) -> None:
    seeds = [comparison(removed, seed) for removed in (64, 1_000) for seed in (0, 1)]
    png, svg = draw({"lenet-vi": seeds, "lenet-sgld": seeds}, tmp_path)
    assert (png.name, svg.name) == ("bnn.png", "bnn.svg")
    assert png.read_bytes().startswith(b"\x89PNG")
    drawing = svg.read_text(encoding="utf-8")
    assert drawing.count('id="axes_') == 2
    assert drawing.count("FillBetweenPolyCollection_") == 2 * 3 * 4
    for text in (TITLES["vi"], TITLES["sgld"], "forgotten, ours", "test, retrained (target)"):
        assert f"<!-- {text} -->" in drawing
