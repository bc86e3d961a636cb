"""Counts of the coverage of network certificates, and one small run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.certificates import network_coverage as module
from benchmarks.certificates.network_coverage import NetworkCoverage, NetworkTrial, network_coverage
from ml.errors import InvalidInput

COVERED = NetworkTrial("relu", 2, 4, 192, True, "random", 1, "influence", 0.1, 0.09, 0.12, 0.13, 0.08, ())
MISSED = replace(COVERED, activation="tanh", truth=0.125)
REFUSED = replace(COVERED, removed=12, low=None, high=None, epsilon=None, reasons=("not shown",))


def test_refused_certificates_are_counted_apart() -> None:
    report = NetworkCoverage(3, 5, (COVERED, MISSED, REFUSED)).to_dict()
    assert {key: report[key] for key in ("trials", "issued", "covered", "above", "above_epsilon", "refused")} == {
        "trials": 3,
        "issued": 2,
        "covered": 1,
        "above": 1,
        "above_epsilon": 0,
        "refused": 1,
    }
    assert (report["coverage"], report["linearised_above"], report["seed"]) == (0.5, 2, 5)
    strata = {(row["factor"], row["value"]): row for row in report["strata"]}  # type: ignore[attr-defined]
    assert strata["activation", "tanh"]["coverage"] == 0
    assert strata["removed", "10 or more"] == {
        "factor": "removed",
        "value": "10 or more",
        "issued": 0,
        "covered": 0,
        "refused": 1,
        "coverage": None,
    }


def test_no_estimate_has_no_coverage() -> None:
    assert NetworkCoverage(1, 5, (REFUSED,)).to_dict()["coverage"] is None
    with pytest.raises(InvalidInput, match="trials is 0"):
        network_coverage(0, seed=1)


@pytest.mark.soak
def test_a_small_run_covers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS", (192,))
    monkeypatch.setattr(module, "_DIMENSIONS", (2,))
    monkeypatch.setattr(module, "_HIDDEN", (4,))
    coverage = network_coverage(2, seed=1)
    assert coverage.issued == 2
    assert coverage.coverage == 1
