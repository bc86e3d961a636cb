"""Summary of an audit: the counts that `lethe bench audit --json` prints, with their breakdowns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from benchmarks.certificates.audit.deletions import Deletion
from benchmarks.certificates.audit.predictions import Prediction
from benchmarks.certificates.audit.sequences import SampleTrial
from benchmarks.certificates.audit.wrong_samples import SLIGHTLY_WIDE, WrongTrial

Trial = TypeVar("Trial")
Summary = dict[str, object]


def summarise_deletions(deletions: Sequence[Deletion]) -> Summary:
    """Return counts over all proved certificates, and by family, kind of data and removal."""
    checks = [deletion for deletion in deletions if deletion.correction is not None]
    return {
        **_count_deletions(deletions),
        "without_truth": sum(deletion.kl is None for deletion in deletions),
        "largest_allowance": max((_allowance(deletion) for deletion in deletions), default=0.0),
        "reference_checks": {
            "made": len(checks),
            "failed": sum(_fails_check(deletion) for deletion in checks),
            "largest_correction": max((deletion.correction or 0.0 for deletion in checks), default=0.0),
        },
        "mixtures": _count_lower_minima(deletions),
        "by_family": _group(deletions, lambda deletion: deletion.family, _count_deletions),
        "by_data": _group(deletions, lambda deletion: deletion.data, _count_deletions),
        "by_removal": _group(deletions, lambda deletion: deletion.removal, _count_deletions),
    }


def summarise_sequences(trials: Sequence[SampleTrial]) -> Summary:
    """Return coverage over all intervals, and by number of deletions, family and reading."""
    issued = [trial for trial in trials if trial.issued]
    return {
        **_count_samples(trials),
        "by_length": _group(trials, lambda trial: str(trial.length), _count_samples),
        "by_family": _group(trials, lambda trial: f"{trial.family}, {trial.parameters} parameters", _count_samples),
        "by_reading": _group(issued, lambda trial: trial.reading, _count_samples),
    }


def summarise_wrong_samples(trials: Sequence[WrongTrial]) -> Summary:
    clearly_wrong = [trial for trial in trials if trial.kind != SLIGHTLY_WIDE]
    slightly = [trial for trial in trials if trial.kind == SLIGHTLY_WIDE]
    return {
        "sets": len(trials),
        "certified": sum(trial.certified for trial in clearly_wrong),
        "false_alarms": sum(trial.false_alarm for trial in trials),
        "false_alarm_share": share(trial.false_alarm for trial in trials),
        "slightly_wide_below_truth": sum(trial.epsilon < trial.divergence for trial in slightly),
        "by_kind": _group(trials, lambda trial: trial.kind, _count_wrong),
    }


def summarise_predictions(predictions: Sequence[Prediction]) -> Summary:
    return {
        **_count_predictions(predictions),
        "by_family": _group(predictions, lambda prediction: prediction.family, _count_predictions),
        "by_training": _group(
            predictions, lambda prediction: "trained" if prediction.trained else "untrained", _count_predictions
        ),
    }


def share(values: Iterable[bool]) -> float | None:
    """Return the share of true values, None of nothing."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else None


def _count_deletions(deletions: Sequence[Deletion]) -> Summary:
    ratios = [deletion.ratio for deletion in deletions if deletion.ratio is not None]
    return {
        "deletions": len(deletions),
        "proved": sum(deletion.proved for deletion in deletions),
        "violations": sum(deletion.violated for deletion in deletions),
        "refused": sum(not deletion.met for deletion in deletions),
        "needless_refusals": sum(deletion.needless for deletion in deletions),
        "needless_share": share(deletion.needless for deletion in deletions),
        "median_ratio": statistics.median(ratios) if ratios else None,
    }


def _count_lower_minima(deletions: Sequence[Deletion]) -> Summary:
    searched = [deletion for deletion in deletions if deletion.lower_minimum is not None]
    return {
        "searched": len(searched),
        "lower_minimum": sum(deletion.lower_minimum is True for deletion in searched),
        "stated": sum(deletion.lower_minimum_stated is True for deletion in searched),
        "not_stated": sum(
            deletion.lower_minimum is True and not deletion.lower_minimum_stated for deletion in searched
        ),
    }


def _count_samples(trials: Sequence[SampleTrial]) -> Summary:
    issued = [trial for trial in trials if trial.issued]
    return {
        "certificates": len(trials),
        "issued": len(issued),
        "coverage": share(trial.covered for trial in issued),
        "epsilon_below_truth": sum(trial.below_truth for trial in issued),
        "epsilon_below_chi_square_bound": sum(trial.below_chi_square_bound for trial in issued),
        "published_above_policy": sum(trial.published_above_policy for trial in issued),
    }


def _count_wrong(trials: Sequence[WrongTrial]) -> Summary:
    return {
        "sets": len(trials),
        "certified_share": share(trial.certified for trial in trials),
        "false_alarm_share": share(trial.false_alarm for trial in trials),
    }


def _count_predictions(predictions: Sequence[Prediction]) -> Summary:
    return {
        "models": len(predictions),
        "agreement": share(prediction.agrees for prediction in predictions),
        "promised_but_refused": sum(prediction.promised and not prediction.issued for prediction in predictions),
        "issued_unpromised": sum(prediction.issued and not prediction.promised for prediction in predictions),
    }


def _group(
    trials: Sequence[Trial], name: Callable[[Trial], str], count: Callable[[Sequence[Trial]], Summary]
) -> dict[str, Summary]:
    """Count the trials of each name, in the order in which the names first occur."""
    names = list(dict.fromkeys(name(trial) for trial in trials))
    return {each: count([trial for trial in trials if name(trial) == each]) for each in names}


def _allowance(deletion: Deletion) -> float:
    """Return the accuracy of the truth in units of what the bound allows."""
    return deletion.accuracy / math.sqrt(deletion.epsilon) if deletion.proved and deletion.epsilon > 0 else 0.0


def _fails_check(deletion: Deletion) -> bool:
    return deletion.correction is not None and deletion.correction > deletion.accuracy
