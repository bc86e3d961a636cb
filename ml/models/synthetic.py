"""Synthetic data for demos and tests."""

import torch
from torch import Tensor

# 4.4 standard deviations between neighbours: separate classes whose tails touch.
_CENTRES = torch.tensor([[2.2, 2.2], [-2.2, 2.2], [-2.2, -2.2], [2.2, -2.2]], dtype=torch.float64)


def synthetic_mixture(n: int = 2000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return n points (n×2) in four unit-variance classes of equal size, and the class of each."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % len(_CENTRES)
    noise = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    return _CENTRES[labels] + noise, labels
