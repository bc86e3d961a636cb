"""Handwritten digits of 8×8 pixels from scikit-learn: 1,797 rows of real data without a download."""

import torch
from torch import Tensor

from ml.errors import InvalidInput

_LARGEST_PIXEL = 16


def digits(test_rows: int = 360, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return training and test rows, split by the seed: 64 pixels in [-0.5, 0.5], then the digit; float64."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # only this function needs it
    except ModuleNotFoundError as error:
        raise InvalidInput("the digits are part of scikit-learn: pip install scikit-learn") from error
    pixels, labels = (torch.as_tensor(part, dtype=torch.float64) for part in load_digits(return_X_y=True))
    if not 0 < test_rows < len(pixels):
        raise InvalidInput(f"test_rows is {test_rows}: pass a number between 1 and {len(pixels) - 1}")
    rows = torch.cat([pixels / _LARGEST_PIXEL - 0.5, labels.unsqueeze(1)], 1)
    shuffled = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]
    return shuffled[test_rows:], shuffled[:test_rows]
