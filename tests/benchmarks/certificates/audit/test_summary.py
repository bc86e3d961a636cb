from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchmarks.certificates.audit.predictions import Prediction
from benchmarks.certificates.audit.summary import (
    share,
    summarise_deletions,
    summarise_predictions,
    summarise_sequences,
    summarise_wrong_samples,
)
from benchmarks.certificates.audit.wrong_samples import SLIGHTLY_WIDE, WrongTrial
from tests.benchmarks.certificates.audit.test_deletions import PROVED
from tests.benchmarks.certificates.audit.test_sequences import TRIAL


def test_deletions_are_counted_by_family_data_and_removal() -> None:
    refused = replace(PROVED, level="none", met=False, epsilon=math.inf, data="tiny")
    violated = replace(PROVED, kl=1.0, family="gaussian-mixture", lower_minimum=True, lower_minimum_stated=False)
    checked = replace(PROVED, correction=1e-11)
    summary = summarise_deletions([PROVED, refused, violated, checked, replace(PROVED, kl=None)])
    assert (summary["deletions"], summary["proved"], summary["violations"]) == (5, 4, 1)
    assert (summary["refused"], summary["needless_refusals"], summary["needless_share"]) == (1, 1, 0.2)
    assert summary["without_truth"] == 1
    assert summary["reference_checks"] == {"made": 1, "failed": 1, "largest_correction": 1e-11}
    assert summary["mixtures"] == {"searched": 1, "lower_minimum": 1, "stated": 0, "not_stated": 1}
    assert summary["largest_allowance"] == pytest.approx(1e-12 / 2e-3)
    assert summary["by_data"]["tiny"]["proved"] == 0  # type: ignore[index]
    assert summary["by_family"]["gaussian-mixture"]["violations"] == 1  # type: ignore[index]
    assert summary["by_removal"]["one"]["deletions"] == 5  # type: ignore[index]


def test_coverage_is_counted_over_issued_intervals() -> None:
    outside, refused = replace(TRIAL, truth=0.5, length=50), replace(TRIAL, level="none", truth=0.5)
    summary = summarise_sequences([TRIAL, outside, refused])
    assert (summary["certificates"], summary["issued"], summary["coverage"]) == (3, 2, 0.5)
    assert (summary["epsilon_below_truth"], summary["published_above_policy"]) == (1, 1)
    assert summary["epsilon_below_chi_square_bound"] == 0
    assert list(summary["by_length"]) == ["10", "50"]  # type: ignore[call-overload]


def test_slightly_wide_sets_are_counted_apart() -> None:
    wrong = WrongTrial("prior draws", True, 0.1, math.nan, True)
    wide = WrongTrial(SLIGHTLY_WIDE, True, 0.01, 0.02, False)
    summary = summarise_wrong_samples([wrong, wide])
    assert (summary["certified"], summary["false_alarms"], summary["false_alarm_share"]) == (1, 1, 0.5)
    assert summary["slightly_wide_below_truth"] == 1
    assert summary["by_kind"][SLIGHTLY_WIDE]["certified_share"] == 1.0  # type: ignore[index]


def test_broken_promises_are_counted_apart_from_unexpected_certificates() -> None:
    kept = Prediction("linear-regression", "tiny", True, True, True, 1e-9, 1e-9)
    summary = summarise_predictions([kept, replace(kept, issued=False), replace(kept, promised=False), kept])
    assert (summary["agreement"], summary["promised_but_refused"], summary["issued_unpromised"]) == (0.5, 1, 1)


def test_nothing_has_no_share() -> None:
    assert share([]) is None
