from __future__ import annotations

import os

import numpy as np
import pytest

from ml.models.lenet import LeNet5
from ml.models.linear import LinearRegression
from service.store.datasets.dataset import Dataset
from worker import loading


@pytest.mark.parametrize(
    ("family", "rows", "threads"),
    [
        (LinearRegression(dimensions=9, noise_std=1.0, prior_std=1.0), 100_000, 6),
        (LinearRegression(dimensions=9, noise_std=1.0, prior_std=1.0), 10_000, 1),
        (LeNet5(), 100_000, 1),
    ],
)
def test_threads_are_for_large_data_that_is_read_at_once(
    family: LinearRegression | LeNet5, rows: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    dataset = Dataset({"x": np.zeros((rows, 10))}, np.arange(rows), np.zeros((rows, 16), np.uint8))
    assert loading._threads(family, dataset) == threads
