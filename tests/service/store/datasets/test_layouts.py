from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from service.store.datasets.layouts import check_posterior, check_row_count, check_rows
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
    check_rows(LAYOUT, "records", ROWS)
    check_row_count(LAYOUT, 2)
    check_posterior(UNKNOWN_LAYOUT, "variational", {"mean": np.zeros(7), "std": np.ones(7)})
    check_posterior(UNKNOWN_LAYOUT, "samples", {"samples": np.zeros((4, 9)), "chain": CHAIN})
    check_rows(UNKNOWN_LAYOUT, "records", {"x": np.zeros((1, 9))})


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
    ],
)
def test_rows_that_do_not_fit_are_refused(rows: dict[str, Any]) -> None:
    with pytest.raises(InvalidRegistration) as refused:
        check_rows(LAYOUT, "never_seen", rows)
    assert refused.value.field == "never_seen"


def test_rows_of_networks_may_be_float32() -> None:
    network = replace(LAYOUT, row_types=("float64", "float32"))
    for kind in ("float64", "float32"):
        check_rows(network, "records", {"x": ROWS["x"].astype(kind)})
    with pytest.raises(InvalidRegistration, match="needs a float64 or float32 tensor 'x' with 3 columns"):
        check_rows(network, "records", {"x": ROWS["x"].astype("float16")})
    with pytest.raises(InvalidRegistration, match="row 0 has no valid label"):
        check_rows(network, "records", {"x": np.array([[0.5, 1.0, 0.1]], dtype=np.float32)})


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(InvalidRegistration, match="at least 2 rows"):
        check_row_count(LAYOUT, 1)
