"""Cost of the checks that accompany a bound, as a share of the deletion they belong to, in processor time."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable

import numpy as np
import torch

import ml
from benchmarks.certificates.audit.sample_truth import sample
from benchmarks.certificates.audit.sequences import build_model, draw_regression, forget_draws, sample_set
from benchmarks.timing import timed
from ml.certify.sample_readiness import diagnose_samples
from ml.ladder import variational

_ROWS = 2_000
_REPETITIONS = 15


def measure_costs(seed: int) -> dict[str, dict[str, float]]:
    """Return seconds of each check, of a deletion of one row that includes it, and their ratio.

    A variational deletion is timed with and without the examination of its reference.
    """
    rng = np.random.default_rng([seed, 4])
    return {
        "frozen noise against the exact ELBO, softmax": _elbo_distance(rng),
        "fresh starts, mixture": _fresh_starts(rng),
        "checks of the draws, sample set": _diagnostics(rng),
    }


def _elbo_distance(rng: np.random.Generator) -> dict[str, float]:
    features, label = rng.normal(size=(_ROWS, 5)), rng.integers(0, 3, _ROWS)
    rows = torch.from_numpy(np.column_stack([features, label.astype(float)]))
    model = ml.build_family("softmax-regression", {"dimensions": 5, "classes": 3, "prior_std": 1.0})
    return _variational(model, rows)


def _fresh_starts(rng: np.random.Generator) -> dict[str, float]:
    group = rng.integers(0, 4, _ROWS)
    rows = torch.from_numpy(4 * rng.normal(size=(4, 2))[group] + rng.normal(size=(_ROWS, 2)))
    model = ml.build_family("gaussian-mixture", {"components": 4, "dimensions": 2, "prior_std": 5.0})
    return _variational(model, rows)


def _variational(model: ml.Family, rows: torch.Tensor) -> dict[str, float]:
    posterior = ml.train(model, rows, model.initial(rows, 0)).posterior
    policy, first = ml.Policy(1e-3), torch.arange(1)
    bare, whole = (
        _median_seconds(
            functools.partial(variational.forget, model, posterior, rows, first, policy, examine_reference=examine)
        )
        for examine in (False, True)
    )
    return _shares(whole - bare, whole)


def _diagnostics(rng: np.random.Generator) -> dict[str, float]:
    posterior = draw_regression(_ROWS, 5, True, rng)
    samples, model = sample_set(sample(posterior, 4, 500, 0.0, rng)), build_model(posterior)
    rows = torch.from_numpy(posterior.rows)
    return _shares(
        _median_seconds(lambda: diagnose_samples(model, samples, rows)),
        _median_seconds(lambda: forget_draws(model, samples, posterior.rows, np.arange(1), 0.3)),
    )


def _shares(check: float, deletion: float) -> dict[str, float]:
    return {"seconds": check, "deletion": deletion, "share": check / deletion}


def _median_seconds(action: Callable[[], object]) -> float:
    return statistics.median(timed(action)[0] for _ in range(_REPETITIONS))
