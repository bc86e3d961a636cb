"""Checks of uploaded tensors against the layout of their family, as far as numpy goes. The worker checks the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.store.datasets.limits import check_magnitude, check_widths, largest_value
from service.store.datasets.tensor_files import Arrays
from service.store.errors import InvalidRegistration
from vocabulary.layouts import LARGEST_LOG_WEIGHT, LARGEST_SEED, Layout
from vocabulary.posterior_kinds import LOG_WEIGHT_TENSORS, MAX_EPOCHS, POSTERIOR_TENSORS, PosteriorKind


def check_posterior(layout: Layout, kind: PosteriorKind, arrays: Arrays) -> None:
    names, weighted = set(POSTERIOR_TENSORS[kind]), kind == "samples" and "log_weights" in arrays
    if set(arrays) != (names | set(LOG_WEIGHT_TENSORS) if weighted else names):
        raise InvalidRegistration(
            "posterior",
            f"needs exactly the tensors {' and '.join(map(repr, POSTERIOR_TENSORS[kind]))}; the manifest's `posterior` "
            f"says which kind it is. Weighted samples have {' and '.join(map(repr, LOG_WEIGHT_TENSORS))} too",
        )
    if kind == "samples":
        _check_samples(layout, arrays["samples"], arrays["chain"])
        if weighted:
            _check_log_weights(arrays["log_weights"], arrays["log_weights_error"], len(arrays["samples"]))
    elif kind == "ensemble":
        _check_ensemble(layout, arrays)
    else:
        _check_variational(layout, arrays["mean"], arrays["std"])
    largest = largest_value(layout, kind)
    if largest is not None:
        _check_posterior_limits(arrays, largest)


def _check_posterior_limits(arrays: Arrays, largest: float) -> None:
    for name in ("mean", "samples", "members"):
        if name in arrays:
            check_magnitude("posterior", name, arrays[name], largest)
    if "std" in arrays:
        check_widths(arrays["std"], largest)


def check_rows(layout: Layout, kind: PosteriorKind, field: str, arrays: Arrays) -> None:
    rows = arrays.get("x")
    fits = rows is not None and rows.ndim == 2 and rows.dtype in layout.row_types
    if rows is None or not fits or layout.columns not in (None, rows.shape[1]):
        columns = "any number of" if layout.columns is None else layout.columns
        types = " or ".join(layout.row_types)
        raise InvalidRegistration(field, f"needs a {types} tensor 'x' with {columns} columns")
    if len(arrays) > 1:  # nothing would use another tensor, it would be stored, and it may say whose the rows are
        raise InvalidRegistration(field, "holds more than the tensor 'x'; leave the others out")
    if layout.classes is not None:
        _check_labels(field, rows[:, -1], layout.classes)
    largest = largest_value(layout, kind)
    if largest is not None:
        check_magnitude(field, "x", rows, largest)


def check_shards(shard: NDArray[Any], lookups: Sequence[bytes]) -> None:
    """Check that the shards are those of these rows, and that nobody's rows are in two of them."""
    if len(shard) != len(lookups):
        raise InvalidRegistration(
            "posterior", f"'shard' has {len(shard)} numbers for {len(lookups)} rows; list each row's"
        )
    first_rows: dict[bytes, int] = {}
    for row, lookup in enumerate(lookups):
        first = first_rows.setdefault(lookup, row)
        if shard[first] != shard[row]:
            raise InvalidRegistration(
                "posterior",
                f"rows {first} and {row} belong to one subject, but to the shards {shard[first]} and {shard[row]}: put "
                "all rows of a subject into one shard, and train again",
            )


def check_row_count(layout: Layout, rows: int) -> None:
    if rows < layout.min_rows:
        raise InvalidRegistration("records", f"needs at least {layout.min_rows} rows; there are {rows}")


def _check_variational(layout: Layout, mean: NDArray[Any], std: NDArray[Any]) -> None:
    shape = layout.shape or mean.shape
    for name, array in (("mean", mean), ("std", std)):
        if array.shape != shape or array.dtype != "float64":
            raise InvalidRegistration("posterior", f"needs a float64 tensor {name!r} of shape {shape}")
    if not (std > 0).all():
        raise InvalidRegistration("posterior", "every standard deviation must be positive")


def _check_samples(layout: Layout, samples: NDArray[Any], chain: NDArray[Any]) -> None:
    count = layout.parameter_count
    fits = samples.ndim == 2 and samples.shape[0] >= 2 and samples.dtype == "float64"
    if not fits or samples.shape[1] == 0 or count not in (None, samples.shape[1]):
        parameters = "all" if count is None else count
        raise InvalidRegistration(
            "posterior", f"needs a float64 tensor 'samples': two rows or more of {parameters} parameters, flattened"
        )
    if chain.shape != samples.shape[:1] or chain.dtype != "int64" or chain.min() < 0:
        raise InvalidRegistration("posterior", "needs an int64 tensor 'chain': the chain of each sample, from 0")


def _check_log_weights(log_weights: NDArray[Any], error: NDArray[Any], draws: int) -> None:
    fits = log_weights.shape == (draws,) and log_weights.dtype == "float64"
    if not fits or not (np.abs(log_weights) <= LARGEST_LOG_WEIGHT).all():
        raise InvalidRegistration(
            "posterior",
            f"needs a float64 tensor 'log_weights': a number within ±{LARGEST_LOG_WEIGHT:g} for each sample; leave out "
            "samples without weight, or the tensor",
        )
    if error.shape != (1,) or error.dtype != "float64" or not 0 <= error[0] <= LARGEST_LOG_WEIGHT:
        raise InvalidRegistration(
            "posterior",
            f"needs a float64 tensor 'log_weights_error': one number from 0 to {LARGEST_LOG_WEIGHT:g}, the error of "
            "'log_weights'",
        )


def _check_ensemble(layout: Layout, arrays: Arrays) -> None:
    members, seed, shard, recipe = (arrays[name] for name in POSTERIOR_TENSORS["ensemble"])
    if members.ndim != 2 or members.dtype != "float64" or members.shape[1] != layout.parameter_count:
        raise InvalidRegistration(
            "posterior",
            f"needs a float64 tensor 'members': a row of {layout.parameter_count} parameters for each member",
        )
    if seed.shape != members.shape[:1] or seed.dtype != "int64" or not ((seed >= 0) & (seed <= LARGEST_SEED)).all():
        raise InvalidRegistration("posterior", f"needs an int64 tensor 'seed': 0 to {LARGEST_SEED} for each member")
    if shard.ndim != 1 or shard.dtype != "int64" or not np.array_equal(np.unique(shard), np.arange(len(members))):
        raise InvalidRegistration(
            "posterior",
            f"needs an int64 tensor 'shard': the member of each row, from 0 to {len(members) - 1}, none without rows",
        )
    if recipe.shape != (4,) or recipe.dtype != "float64" or not _is_recipe(*recipe):
        raise InvalidRegistration(
            "posterior",
            f"needs a float64 tensor 'recipe': whole epochs from 1 to {MAX_EPOCHS}, a whole batch size, a learning "
            "rate and a share of the prior, both above 0 and up to 1",
        )


def _is_recipe(epochs: float, batch_size: float, learning_rate: float, prior_share: float) -> bool:
    is_whole = epochs == round(epochs) and batch_size == round(batch_size)
    return bool(
        is_whole and 1 <= epochs <= MAX_EPOCHS and batch_size >= 1 and 0 < learning_rate <= 1 and 0 < prior_share <= 1
    )


def _check_labels(field: str, labels: NDArray[Any], classes: int) -> None:
    wrong = np.flatnonzero((labels != np.round(labels)) | (labels < 0) | (labels >= classes))
    if len(wrong) > 0:
        raise InvalidRegistration(
            field, f"row {wrong[0]} has no valid label: make the last column whole numbers from 0 to {classes - 1}"
        )
