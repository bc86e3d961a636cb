"""Tensor layouts: the shapes and types that a family and its configuration prescribe."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
    records_needed: int = 1
    """A model that a deletion leaves with fewer is destroyed, since its family cannot forget on so few."""

    @property
    def parameter_count(self) -> int | None:
        return None if self.shape is None else math.prod(self.shape)


UNKNOWN_LAYOUT = Layout()
"""Layout of a family from another package."""
