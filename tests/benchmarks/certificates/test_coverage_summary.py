from __future__ import annotations

import json
import math

from benchmarks.certificates.coverage_summary import Stratum, Trial, summarise
from vocabulary.posterior_kinds import Reading


def trial(
    truth: float,
    low: float | None,
    high: float | None,
    k_hat: float = 0.2,
    deletions: int = 1,
    reading: Reading = "draws",
) -> Trial:
    epsilon = None if high is None else high + 0.2
    return Trial("linear", "shift", "uniform", deletions, 1, 9, reading, truth, low, high, epsilon, k_hat, 0.9, ())


def test_trials_are_counted() -> None:
    outcomes = (
        trial(1.0, 0.5, 1.5),
        trial(1.0, 1.0, 1.0),
        trial(1.0, 1.1, 1.5),
        trial(1.0, 0.5, 0.9),
        trial(1.0, 0.5, 0.7),
        trial(1.0, None, None),
        trial(1.0, None, None, k_hat=0.8),
        trial(1.0, None, None, k_hat=math.nan),
        trial(1.0, 0.5, 1.5, k_hat=0.71),  # would be a fault of the certificate, and has to show
    )
    report = summarise(7, outcomes, seed=3)
    assert (report.trials, report.issued, report.covered, report.refused) == (7, 6, 3, 3)
    assert (report.above, report.above_epsilon) == (2, 1)
    assert (report.heavy_tailed, report.refused_k_hat) == (3, 2)
    assert report.share == 0.5
    assert "outcomes" not in report.to_dict()


def test_coverage_is_counted_for_each_length_and_reading() -> None:
    outcomes = (
        trial(1.0, 0.5, 1.5),
        trial(1.0, 0.5, 0.9, deletions=50),
        trial(1.0, 0.5, 1.5, deletions=50),
        trial(1.0, 0.0, 0.7, deletions=50, reading="weighted draws"),
        trial(1.0, None, None, deletions=200),
    )
    report = summarise(5, outcomes, seed=0)
    assert report.strata == (
        Stratum(1, "draws", issued=1, covered=1, above=0, above_epsilon=0),
        Stratum(50, "draws", issued=2, covered=1, above=1, above_epsilon=0),
        Stratum(50, "weighted draws", issued=1, covered=0, above=1, above_epsilon=1),
    )
    assert [stratum["share"] for stratum in json.loads(json.dumps(report.to_dict()))["strata"]] == [1.0, 0.5, 0.0]


def test_where_nothing_is_issued_there_is_no_share() -> None:
    report = summarise(1, (trial(1.0, None, None),), seed=0)
    assert math.isnan(report.share)
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["share"] is None
