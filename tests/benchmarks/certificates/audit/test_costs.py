from __future__ import annotations

import pytest

from benchmarks.certificates.audit import costs


def test_checks_cost_a_part_of_a_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "_ROWS", 60)
    monkeypatch.setattr(costs, "_REPETITIONS", 3)
    measured = costs.measure_costs(0)
    assert len(measured) == 3
    for cost in measured.values():
        assert cost["seconds"] < cost["deletion"]
        assert cost["share"] == pytest.approx(cost["seconds"] / cost["deletion"])
