from __future__ import annotations

from pathlib import Path

from benchmarks.solvers.comparison import SOLVERS, SolverComparison, SolverPath, SolverTable
from benchmarks.solvers.figure import LINES, draw


def test_the_figure_has_a_panel_per_damping_and_names_what_diverged(tmp_path: Path) -> None:
    paths = {name: SolverPath(name, [1, 2], [0.5, 0.1], [0.5, 0.1]) for name in SOLVERS}
    paths["neumann-paper"] = SolverPath("neumann-paper", [1], [50.0], [50.0], diverged=True)
    tables = [SolverTable(damping, "cholesky", 1e-9, 2.0, 3.0, paths) for damping in (0.0, 10.0)]
    png, svg = draw(SolverComparison("mlp", 2410, 1437, 1373, 64, tables), tmp_path)
    assert png.read_bytes().startswith(b"\x89PNG")
    drawing = svg.read_text(encoding="utf-8")
    assert drawing.count('id="axes_') == 2
    labels = [label for name, (label, _) in LINES.items() if name != "neumann-paper"]
    for text in ("MLP on digits: 2,410 parameters", f"{LINES['neumann-paper'][0]}, diverges", *labels):
        assert f"<!-- {text} -->" in drawing
