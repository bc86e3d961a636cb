"""Tensor layouts: the shapes and types that a family and its configuration prescribe."""

from __future__ import annotations

import math
from dataclasses import dataclass

LARGEST_VALUE = 1e12
"""Beyond it float64 cannot be relied on to train a model again without somebody's rows. Widths also have a least value,
its inverse. Tests forget from models at these limits (tests/service/store/datasets/test_limits.py)."""
LARGEST_SAMPLED_VALUE = 1e6
"""The same of models with samples, for whom training again means chains, which need more digits."""

LARGEST_LOG_WEIGHT = 1e3
"""A sample whose weight is smaller by this exponent has none in float64."""

LARGEST_SEED = (1 << 53) - 1
"""Certificates repeat seeds, and canonical JSON has no larger integer."""


@dataclass(frozen=True)
class Layout:
    """Shapes and types of a posterior and of its rows; None where only the family's own code knows them."""

    shape: tuple[int, ...] | None = None
    """Shape of `mean` and `std`. A sample is the same, flattened."""
    columns: int | None = None
    classes: int | None = None
    """Rows of a classifier end in a label from 0 to `classes` - 1."""
    min_rows: int = 1
    row_types: tuple[str, ...] = ("float64",)
    largest_value: float | None = LARGEST_VALUE
    """Largest magnitude of a number in the rows and in the posterior. None where only the family's own code knows."""
    records_needed: int = 1
    """A model that a deletion leaves with fewer is destroyed, since its family cannot forget on so few."""

    @property
    def parameter_count(self) -> int | None:
        return None if self.shape is None else math.prod(self.shape)


UNKNOWN_LAYOUT = Layout(largest_value=None)
"""Layout of a family from another package."""
