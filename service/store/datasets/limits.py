"""Limits of the numbers in uploaded tensors: within them, a model can be made to forget anybody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.store.errors import InvalidRegistration
from vocabulary.layouts import LARGEST_SAMPLED_VALUE, Layout
from vocabulary.posterior_kinds import PosteriorKind

CHECKED_AT_ONCE = 1 << 20


def first_row(array: NDArray[Any], is_wrong: Callable[[NDArray[Any]], NDArray[np.bool_]]) -> int | None:
    """Return the number of the first row that holds a wrong value; None if there is none.

    The rows are checked part by part, since a mask for all values would be another large array.
    """
    rows = array.reshape(len(array), -1) if array.ndim and len(array) else array.reshape(1, -1)
    step = max(1, CHECKED_AT_ONCE // max(1, rows.shape[1]))
    for start in range(0, len(rows), step):
        wrong = np.flatnonzero(is_wrong(rows[start : start + step]).any(1))
        if len(wrong) > 0:
            return start + int(wrong[0])
    return None


def largest_value(layout: Layout, kind: PosteriorKind) -> float | None:
    """Return the largest magnitude that a model with this layout and kind of posterior may hold; None for any."""
    if layout.largest_value is None:
        return None
    return min(layout.largest_value, LARGEST_SAMPLED_VALUE) if kind == "samples" else layout.largest_value


def check_magnitude(field: str, name: str, array: NDArray[Any], largest: float) -> None:
    """Raises InvalidRegistration if a number is larger than this. The message has its row, never its value."""
    row = first_row(array, lambda part: np.abs(part) > largest)
    if row is not None:
        raise InvalidRegistration(
            field,
            f"row {row} of {name!r} holds a number beyond ±{largest:g}, so that nobody could be forgotten reliably: "
            "rescale the columns, for instance to a standard deviation of 1, and train again",
        )


def check_widths(std: NDArray[Any], largest: float) -> None:
    row = first_row(std, lambda part: (part < 1 / largest) | (part > largest))
    if row is not None:
        raise InvalidRegistration(
            "posterior",
            f"row {row} of 'std' holds a width outside {1 / largest:g} to {largest:g}, so that nobody could be "
            "forgotten reliably: rescale the columns of the data and train again",
        )
