from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ml.errors import InvalidInput
from ml.models.checks import check_count, check_labels, check_rows, check_scale, check_weights
from ml.posteriors.mean_field import MeanFieldGaussian


def rows(*shape: int, value: float = 0.0) -> Tensor:
    return torch.full(shape, value, dtype=torch.float64)


def test_counts_start_at_their_minimum() -> None:
    check_count("draws", 1)
    check_count("draws", 0, minimum=0)
    with pytest.raises(InvalidInput, match="draws is 1: pass a whole number of at least 2"):
        check_count("draws", 1, minimum=2)


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "2", None])
def test_only_positive_integers_are_counts(value: Any) -> None:
    with pytest.raises(InvalidInput, match="count is"):
        check_count("count", value)


@pytest.mark.parametrize("value", [0.0, -1.0, 1e41, 1e-41, math.nan, math.inf, "1", True])
def test_only_positive_numbers_of_moderate_size_are_scales(value: Any) -> None:
    check_scale("prior_std", 1e40)
    check_scale("prior_std", 2)
    with pytest.raises(InvalidInput, match="prior_std is"):
        check_scale("prior_std", value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (rows(3), "rows of 3 columns"),
        (rows(4, 2), "rows of 3 columns, 2 features and the target last"),
        (rows(4, 3).float(), "float64"),
        (rows(0, 3), "no rows"),
        (rows(4, 3, value=math.nan), "NaN"),
        (rows(4, 3, value=-1.1e40), "beyond 1e40"),
    ],
)
def test_rows_that_do_not_fit_are_refused(data: Tensor, message: str) -> None:
    check_rows(rows(4, 3, value=-1e40), 2)
    with pytest.raises(InvalidInput, match=message):
        check_rows(data, 2)


def test_the_first_wrong_label_is_named() -> None:
    data = torch.tensor([[9.5, 0.0], [9.5, 2.0]], dtype=torch.float64)
    check_labels(data, 3)
    for label in (3.0, -1.0, 0.5):
        data[1, 1] = label
        with pytest.raises(InvalidInput, match=rf"row 1 has the label {label}: pass whole numbers from 0 to 2"):
            check_labels(data, 3)


@pytest.mark.parametrize(
    ("shape", "mean", "std", "message"),
    [((3,), 0.0, 1.0, r"needs \(2,\)"), ((2,), -1.1e40, 1.0, "beyond 1e40"), ((2,), 0.0, 0.9e-40, "below 1e-40")],
)
def test_posteriors_that_do_not_fit_are_refused(shape: tuple[int, ...], mean: float, std: float, message: str) -> None:
    check_weights(MeanFieldGaussian(rows(2, value=-1e40), rows(2, value=1e-40)), (2,))
    with pytest.raises(InvalidInput, match=message):
        check_weights(MeanFieldGaussian(rows(*shape, value=mean), rows(*shape, value=std)), (2,))
