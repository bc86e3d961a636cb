from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from benchmarks.datasets.digits import digits
from ml.errors import InvalidInput

pytest.importorskip("sklearn", reason="scikit-learn is not installed")


def test_rows_scale_and_labels() -> None:
    train, test = digits()
    assert train.shape == (1437, 65)
    assert test.shape == (360, 65)
    assert train.dtype == test.dtype == torch.float64
    rows = torch.cat([train, test])
    assert (float(rows[:, :-1].min()), float(rows[:, :-1].max())) == (-0.5, 0.5)
    assert torch.bincount(rows[:, -1].long()).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_each_digit_goes_to_one_side_only_whatever_the_seed() -> None:
    splits = [torch.cat(digits(seed=seed)) for seed in (0, 1)]
    first, second = (split[split.sum(1).argsort()].sum(0) for split in splits)
    assert torch.allclose(first, second, rtol=1e-12)
    assert not torch.equal(*splits)
    assert torch.equal(digits(seed=1)[0], digits(seed=1)[0])


def test_the_pixels_belong_to_their_label() -> None:
    train, test = digits()
    nearest = torch.cdist(test[:, :-1], train[:, :-1]).argmin(1)
    assert float((train[nearest, -1] == test[:, -1]).double().mean()) > 0.97


@pytest.mark.parametrize("test_rows", [0, 1797, -5])
def test_a_side_without_rows_is_refused(test_rows: int) -> None:
    with pytest.raises(InvalidInput, match="test_rows"):
        digits(test_rows)


@pytest.mark.slow
def test_scikit_learn_is_loaded_only_when_asked() -> None:
    modules = "ml, benchmarks.datasets.digits, benchmarks.datasets.fashion_mnist"
    script = f"import sys, {modules}; print({{'sklearn', 'torchvision'}} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "set()"


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(InvalidInput, match="pip install scikit-learn"):
        digits()
