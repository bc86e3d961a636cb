from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from service.store.datasets.layouts import check_posterior, check_row_count, check_rows, check_shards
from service.store.errors import InvalidRegistration
from vocabulary.layouts import UNKNOWN_LAYOUT, Layout
from vocabulary.posterior_kinds import PosteriorKind

LAYOUT = Layout((3, 2), columns=3, classes=3, min_rows=2)
CHAIN = np.arange(4) % 2
SAMPLES = {"samples": np.zeros((4, 6)), "chain": CHAIN}
WEIGHTED = {**SAMPLES, "log_weights": np.zeros(4), "log_weights_error": np.zeros(1)}
VARIATIONAL = {"mean": np.zeros((3, 2)), "std": np.ones((3, 2))}
ROWS = {"x": np.array([[0.5, 1.0, 0.0], [0.5, 1.0, 2.0]])}


def test_arrays_that_fit_are_accepted() -> None:
    check_posterior(LAYOUT, "variational", VARIATIONAL)
    check_posterior(LAYOUT, "samples", SAMPLES)
    check_posterior(LAYOUT, "samples", WEIGHTED)
    check_rows(LAYOUT, "variational", "records", ROWS)
    check_row_count(LAYOUT, 2)
    check_posterior(UNKNOWN_LAYOUT, "variational", {"mean": np.zeros(7), "std": np.ones(7)})
    check_posterior(UNKNOWN_LAYOUT, "samples", {"samples": np.zeros((4, 9)), "chain": CHAIN})
    check_rows(UNKNOWN_LAYOUT, "variational", "records", {"x": np.zeros((1, 9))})


ENSEMBLE = {
    "members": np.zeros((2, 6)),
    "seed": np.array([0, 1]),
    "shard": np.array([0, 1, 1]),
    "recipe": np.array([20, 64, 1e-3, 0.5]),
}


def test_an_ensemble_that_fits_is_accepted() -> None:
    check_posterior(LAYOUT, "ensemble", ENSEMBLE)
    check_shards(ENSEMBLE["shard"], [b"a", b"b", b"b"])


def test_rows_of_one_subject_in_two_shards_are_named_by_their_numbers() -> None:
    with pytest.raises(InvalidRegistration, match="rows 0 and 2 belong to one subject, but to the shards 0 and 1"):
        check_shards(ENSEMBLE["shard"], [b"a", b"b", b"a"])
    with pytest.raises(InvalidRegistration, match="3 numbers for 2 rows"):
        check_shards(ENSEMBLE["shard"], [b"a", b"b"])


POSTERIORS: dict[str, tuple[PosteriorKind, dict[str, Any]]] = {
    "the other kind": ("samples", VARIATIONAL),
    "and the other way round": ("variational", SAMPLES),
    "one tensor too many": ("variational", {**VARIATIONAL, "extra": np.zeros(1)}),
    "one too few": ("samples", {"samples": SAMPLES["samples"]}),
    "transposed": ("variational", {name: array.T for name, array in VARIATIONAL.items()}),
    "mean of another shape": ("variational", {**VARIATIONAL, "mean": np.zeros((1, 2))}),
    "float32": ("variational", {name: array.astype(np.float32) for name, array in VARIATIONAL.items()}),
    "no width": ("variational", {**VARIATIONAL, "std": np.zeros((3, 2))}),
    "samples in the shape of the mean": ("samples", {**SAMPLES, "samples": np.zeros((4, 3, 2))}),
    "too few parameters": ("samples", {**SAMPLES, "samples": np.zeros((4, 5))}),
    "one sample": ("samples", {"samples": np.zeros((1, 6)), "chain": np.zeros(1, dtype=np.int64)}),
    "chains of another length": ("samples", {**SAMPLES, "chain": np.arange(3)}),
    "chains as floats": ("samples", {**SAMPLES, "chain": np.zeros(4)}),
    "weights without their error": ("samples", {**SAMPLES, "log_weights": np.zeros(4)}),
    "an error without weights": ("samples", {**SAMPLES, "log_weights_error": np.zeros(1)}),
    "weights of a mean": ("variational", {**VARIATIONAL, "log_weights": np.zeros(4), "log_weights_error": np.zeros(1)}),
    "weights of another number": ("samples", {**WEIGHTED, "log_weights": np.zeros(3)}),
    "weights in float32": ("samples", {**WEIGHTED, "log_weights": np.zeros(4, dtype=np.float32)}),
    "an infinite weight": ("samples", {**WEIGHTED, "log_weights": np.array([0.0, 0.0, np.inf, 0.0])}),
    "two errors": ("samples", {**WEIGHTED, "log_weights_error": np.zeros(2)}),
    "a negative error": ("samples", {**WEIGHTED, "log_weights_error": np.array([-1.0])}),
    "an error without a limit": ("samples", {**WEIGHTED, "log_weights_error": np.array([np.nan])}),
    "a weight without weight": ("samples", {**WEIGHTED, "log_weights": np.array([0.0, 0.0, -1001.0, 0.0])}),
    "an error above every weight": ("samples", {**WEIGHTED, "log_weights_error": np.array([1001.0])}),
    "a mean out of range": ("variational", {**VARIATIONAL, "mean": np.full((3, 2), 1.1e12)}),
    "a width too large": ("variational", {**VARIATIONAL, "std": np.full((3, 2), 1.1e12)}),
    "a width too small": ("variational", {**VARIATIONAL, "std": np.full((3, 2), 0.9e-12)}),
    "samples out of range": ("samples", {**SAMPLES, "samples": np.full((4, 6), -1.1e6)}),
    "members without seeds": ("ensemble", {name: ENSEMBLE[name] for name in ("members", "shard", "recipe")}),
    "members in float32": ("ensemble", {**ENSEMBLE, "members": np.zeros((2, 6), dtype=np.float32)}),
    "members of another network": ("ensemble", {**ENSEMBLE, "members": np.zeros((2, 5))}),
    "members out of range": ("ensemble", {**ENSEMBLE, "members": np.full((2, 6), 1.1e12)}),
    "a seed that no certificate can state": ("ensemble", {**ENSEMBLE, "seed": np.array([0, 1 << 53])}),
    "a shard without rows": ("ensemble", {**ENSEMBLE, "shard": np.array([0, 0, 0])}),
    "a shard without member": ("ensemble", {**ENSEMBLE, "shard": np.array([0, 1, 2])}),
    "shards as floats": ("ensemble", {**ENSEMBLE, "shard": np.array([0.0, 1.0])}),
    "half an epoch": ("ensemble", {**ENSEMBLE, "recipe": np.array([0.5, 64, 1e-3, 1])}),
    "epochs without end": ("ensemble", {**ENSEMBLE, "recipe": np.array([1001, 64, 1e-3, 1])}),
    "empty batches": ("ensemble", {**ENSEMBLE, "recipe": np.array([1, 0, 1e-3, 1])}),
    "no learning rate": ("ensemble", {**ENSEMBLE, "recipe": np.array([1, 64, 0, 1])}),
    "more than the prior": ("ensemble", {**ENSEMBLE, "recipe": np.array([1, 64, 1e-3, 1.5])}),
    "a negative chain": ("samples", {**SAMPLES, "chain": np.array([0, 1, -1, 0])}),
}


@pytest.mark.parametrize(("kind", "arrays"), POSTERIORS.values(), ids=POSTERIORS.keys())
def test_a_posterior_that_does_not_fit_is_refused(kind: PosteriorKind, arrays: dict[str, Any]) -> None:
    with pytest.raises(InvalidRegistration) as refused:
        check_posterior(LAYOUT, kind, arrays)
    assert refused.value.field == "posterior"


def test_an_unknown_family_still_needs_two_tensors_of_one_shape() -> None:
    with pytest.raises(InvalidRegistration):
        check_posterior(UNKNOWN_LAYOUT, "variational", {"mean": np.zeros(7), "std": np.ones(6)})


@pytest.mark.parametrize(
    "rows",
    [
        {},
        {"y": ROWS["x"]},
        {"x": np.zeros(3)},
        {"x": np.zeros((2, 4))},
        {"x": np.zeros((2, 3), dtype=np.float32)},
        {"x": np.array([[0.5, 1.0, 3.0]])},
        {"x": np.array([[0.5, 1.0, -1.0]])},
        {"x": np.array([[0.5, 1.0, 0.5]])},
        {"x": np.array([[0.5, -1.1e12, 1.0]])},
    ],
)
def test_rows_that_do_not_fit_are_refused(rows: dict[str, Any]) -> None:
    with pytest.raises(InvalidRegistration) as refused:
        check_rows(LAYOUT, "variational", "never_seen", rows)
    assert refused.value.field == "never_seen"


def test_rows_of_networks_may_be_float32() -> None:
    network = replace(LAYOUT, row_types=("float64", "float32"))
    for kind in ("float64", "float32"):
        check_rows(network, "variational", "records", {"x": ROWS["x"].astype(kind)})
    with pytest.raises(InvalidRegistration, match="needs a float64 or float32 tensor 'x' with 3 columns"):
        check_rows(network, "variational", "records", {"x": ROWS["x"].astype("float16")})
    with pytest.raises(InvalidRegistration, match="row 0 has no valid label"):
        check_rows(network, "variational", "records", {"x": np.array([[0.5, 1.0, 0.1]], dtype=np.float32)})


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(InvalidRegistration, match="at least 2 rows"):
        check_row_count(LAYOUT, 1)


def test_numbers_at_the_limits_are_accepted() -> None:
    check_rows(LAYOUT, "variational", "records", {"x": np.array([[-1e12, 1e12, 1.0]])})
    check_rows(LAYOUT, "samples", "records", {"x": np.array([[-1e6, 1e6, 1.0]])})
    limits = {"mean": np.full((3, 2), -1e12), "std": np.array([[1e-12, 1e12]] * 3)}
    check_posterior(LAYOUT, "variational", limits)
    check_posterior(LAYOUT, "samples", {**WEIGHTED, "samples": np.full((4, 6), 1e6), "log_weights": np.full(4, -1e3)})


def test_models_with_samples_and_networks_have_narrower_limits() -> None:
    rows = {"x": np.array([[1.0, 1.0, 0.0], [1.1e6, 1.0, 0.0]])}
    check_rows(LAYOUT, "variational", "records", rows)
    with pytest.raises(InvalidRegistration, match=r"row 1 of 'x' holds a number beyond ±1e\+06.*rescale"):
        check_rows(LAYOUT, "samples", "records", rows)
    with pytest.raises(InvalidRegistration, match="beyond ±1000"):
        check_rows(replace(LAYOUT, largest_value=1e3), "variational", "records", rows)


def test_only_the_family_knows_the_limits_of_an_unknown_layout() -> None:
    check_rows(UNKNOWN_LAYOUT, "variational", "records", {"x": np.full((1, 9), 1e300)})
    check_posterior(UNKNOWN_LAYOUT, "variational", {"mean": np.full(7, 1e300), "std": np.full(7, 1e-300)})
