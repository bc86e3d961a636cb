"""Checks of arguments, rows and posteriors that several families share. Each raises InvalidInput."""

from __future__ import annotations

import torch
from torch import Tensor

from ml.errors import InvalidInput
from ml.posteriors.mean_field import MeanFieldGaussian

# Products of six factors between 1/_LARGEST and _LARGEST, and their sums, are finite in float64.
_LARGEST = 1e40


def check_count(name: str, value: int, minimum: int = 1) -> None:
    if type(value) is not int or value < minimum:
        raise InvalidInput(f"{name} is {value!r}: pass a whole number of at least {minimum}")


def check_scale(name: str, value: float) -> None:
    if type(value) not in (int, float) or not 1 / _LARGEST <= value <= _LARGEST:
        raise InvalidInput(f"{name} is {value!r}: pass a number between 1e-40 and 1e40")


def check_rows(data: Tensor, dimensions: int) -> None:
    """Check rows of a regression: features, and the target last."""
    if data.ndim != 2 or data.shape[1] != dimensions + 1:
        raise InvalidInput(
            f"data has shape {tuple(data.shape)}: pass rows of {dimensions + 1} columns, {dimensions} features and "
            "the target last"
        )
    if data.dtype != torch.float64:
        raise InvalidInput(f"data is {data.dtype}: convert it to torch.float64")
    if len(data) == 0:
        raise InvalidInput("data has no rows: pass at least one")
    if not float(data.abs().max()) <= _LARGEST:
        raise InvalidInput("data holds NaN, infinity or values beyond 1e40: clean, scale or drop those rows")


def check_labels(data: Tensor, classes: int) -> None:
    labels = data[:, -1]
    wrong = (labels != labels.round()) | (labels < 0) | (labels >= classes)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise InvalidInput(
            f"row {row} has the label {float(labels[row])}: pass whole numbers from 0 to {classes - 1} as last column"
        )


def check_weights(posterior: MeanFieldGaussian, shape: tuple[int, ...]) -> None:
    if posterior.mean.shape != shape:
        raise InvalidInput(f"posterior has shape {tuple(posterior.mean.shape)}: this regression needs {shape}")
    if float(posterior.flat().abs().max()) > _LARGEST or float(posterior.std.min()) < 1 / _LARGEST:
        raise InvalidInput("posterior holds values beyond 1e40 or std below 1e-40: scale the data and train again")
