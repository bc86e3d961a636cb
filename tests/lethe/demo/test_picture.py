from __future__ import annotations

from pathlib import Path

import pytest
import torch
from matplotlib.image import imread

import ml
from lethe.demo.picture import draw

POINTS = torch.tensor([[0.0, 0.0], [0.5, 0.0], [4.0, 4.0], [4.5, 4.0]], dtype=torch.float64)


def posterior(shift: float) -> ml.MeanFieldGaussian:
    mean = torch.tensor([[0.0, 0.0], [4.0, 4.0]], dtype=torch.float64)
    return ml.MeanFieldGaussian(mean + shift, torch.full_like(mean, 0.1))


def test_three_panels_are_drawn(tmp_path: Path) -> None:
    posteriors = [posterior(0.0), posterior(0.1), posterior(0.11)]
    path = draw(tmp_path / "mixture.png", POINTS, torch.tensor([1]), posteriors)
    pixels = imread(path)
    height, width = pixels.shape[:2]
    assert width > 2 * height
    thirds = [pixels[:, start : start + width // 3] for start in (0, width // 3, 2 * (width // 3))]
    assert all(third.std() > 0 for third in thirds)


def test_one_posterior_for_each_panel_is_required(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="zip"):
        draw(tmp_path / "mixture.png", POINTS, torch.tensor([1]), [posterior(0.0)])
