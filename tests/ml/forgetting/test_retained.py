from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ml.errors import InvalidInput
from ml.forgetting.retained import retained_rows, retained_rows_of_samples
from tests.ml.likelihoods import Mixture

DATA = torch.arange(20, dtype=torch.float64).reshape(10, 2)
SAMPLES = torch.zeros(3, 8, dtype=torch.float64)


def rows(*positions: int) -> Tensor:
    return torch.tensor(positions, dtype=torch.int64)


def test_retained_rows_keep_their_order() -> None:
    assert retained_rows(DATA, rows(9, 0, 4))[:, 0].tolist() == [2, 4, 6, 10, 12, 14, 16]
    assert torch.equal(retained_rows_of_samples(Mixture(), SAMPLES, DATA, rows(3)), retained_rows(DATA, rows(3)))


@pytest.mark.parametrize(
    ("forgotten", "message"),
    [
        (rows(), "at least one"),
        (rows(-1), r"outside 0\.\.9"),
        (rows(10), r"outside 0\.\.9"),
        (rows(5, 6, 5), "named twice"),
        (torch.arange(10), "delete the model"),
        (rows(1, 2).reshape(1, 2), "1-D tensor"),
        (rows(1, 2).double(), r"torch\.int64"),
        (torch.zeros(10, dtype=torch.bool), r"torch\.int64"),
    ],
)
def test_rows_that_cannot_be_forgotten_are_invalid_input(forgotten: Tensor, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        retained_rows(DATA, forgotten)
    with pytest.raises(InvalidInput, match=message):
        retained_rows_of_samples(Mixture(), SAMPLES, DATA, forgotten)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (SAMPLES[0], "at least one row of 8 parameters"),
        (SAMPLES[:, :7], "at least one row of 8 parameters"),
        (SAMPLES[:0], "at least one row of 8 parameters"),
        (SAMPLES.float(), "float64"),
        (SAMPLES + math.nan, "NaN"),
        (SAMPLES - math.inf, "infinity"),
    ],
)
def test_samples_that_do_not_fit_are_invalid_input(samples: Tensor, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        retained_rows_of_samples(Mixture(), samples, DATA, rows(1))


def test_the_likelihood_checks_the_data() -> None:
    with pytest.raises(InvalidInput, match="columns"):
        retained_rows_of_samples(Mixture(), SAMPLES, DATA[:, :1], rows(1))
