"""What a model's tensors must look like, as far as numpy can tell. The worker checks the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.store.datasets.tensor_files import Arrays
from service.store.errors import InvalidRegistration


@dataclass(frozen=True)
class Layout:
    """The shapes that a family and its configuration ask for; None where only the family's own code knows."""

    shape: tuple[int, ...] | None = None
    """Of `mean` and `std`; a sample is the same, flattened."""
    columns: int | None = None
    classes: int | None = None
    """Rows of a classifier end in a label from 0 to one less than this."""
    least_rows: int = 1
    row_types: tuple[str, ...] = ("float64",)

    @property
    def parameter_count(self) -> int | None:
        return None if self.shape is None else math.prod(self.shape)

    def check_posterior(self, kind: str, arrays: Arrays) -> None:
        _check_names(arrays, {"samples", "chain"} if kind == "samples" else {"mean", "std"})
        if kind == "samples":
            self._check_samples(arrays["samples"], arrays["chain"])
        else:
            self._check_variational(arrays["mean"], arrays["std"])

    def check_rows(self, field: str, arrays: Arrays) -> None:
        rows = arrays.get("x")
        fits = rows is not None and rows.ndim == 2 and rows.dtype in self.row_types
        if rows is None or not fits or self.columns not in (None, rows.shape[1]):
            columns = "any number of" if self.columns is None else self.columns
            kinds = " or ".join(self.row_types)
            raise InvalidRegistration(field, f"needs a {kinds} tensor 'x' with {columns} columns")
        if len(arrays) > 1:  # nothing would use it, it would be kept, and it may say whose the rows are
            raise InvalidRegistration(field, "holds more than the tensor 'x'; leave the others out")
        if self.classes is not None:
            _check_labels(field, rows[:, -1], self.classes)

    def check_count(self, rows: int) -> None:
        if rows < self.least_rows:
            raise InvalidRegistration("records", f"needs at least {self.least_rows} rows; there are {rows}")

    def _check_variational(self, mean: NDArray[Any], std: NDArray[Any]) -> None:
        shape = self.shape or mean.shape
        for name, array in (("mean", mean), ("std", std)):
            if array.shape != shape or array.dtype != "float64":
                raise InvalidRegistration("posterior", f"needs a float64 tensor {name!r} of shape {shape}")
        if not (std > 0).all():
            raise InvalidRegistration("posterior", "every standard deviation must be positive")

    def _check_samples(self, samples: NDArray[Any], chain: NDArray[Any]) -> None:
        count = self.parameter_count
        fits = samples.ndim == 2 and samples.shape[0] >= 2 and samples.dtype == "float64"
        if not fits or samples.shape[1] == 0 or count not in (None, samples.shape[1]):
            parameters = "all" if count is None else count
            raise InvalidRegistration(
                "posterior", f"needs a float64 tensor 'samples': two rows or more of {parameters} parameters, flattened"
            )
        if chain.shape != samples.shape[:1] or chain.dtype != "int64" or chain.min() < 0:
            raise InvalidRegistration(
                "posterior", "needs an int64 tensor 'chain': from which chain each sample is, counted from 0"
            )


UNKNOWN_LAYOUT = Layout()
"""Of a family whose code is not ours."""


def _check_names(arrays: Arrays, wanted: set[str]) -> None:
    if set(arrays) != wanted:
        names = " and ".join(repr(name) for name in sorted(wanted, reverse=True))
        raise InvalidRegistration(
            "posterior", f"needs exactly the tensors {names}; the manifest's `posterior` says which kind it is"
        )


def _check_labels(field: str, labels: NDArray[Any], classes: int) -> None:
    wrong = np.flatnonzero((labels != np.round(labels)) | (labels < 0) | (labels >= classes))
    if len(wrong) > 0:
        raise InvalidRegistration(
            field, f"row {wrong[0]} ends in no label: make the last column whole numbers from 0 to {classes - 1}"
        )
