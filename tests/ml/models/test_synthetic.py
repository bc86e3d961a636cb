import torch

from ml.models.synthetic import synthetic_mixture


def test_four_unit_variance_classes_of_equal_size() -> None:
    data, labels = synthetic_mixture(2000, seed=3)
    assert data.shape == (2000, 2)
    assert data.dtype == torch.float64
    assert torch.bincount(labels).tolist() == [500] * 4
    for label in range(4):
        assert torch.allclose(data[labels == label].std(0), torch.ones(2, dtype=torch.float64), atol=0.12)


def test_classes_touch_but_are_separate() -> None:
    data, labels = synthetic_mixture(2000, seed=3)
    centres = torch.stack([data[labels == label].mean(0) for label in range(4)])
    strays = (torch.cdist(data, centres).argmin(1) != labels).double().mean()
    assert 0.005 < float(strays) < 0.06


def test_the_seed_decides() -> None:
    assert torch.equal(synthetic_mixture(50, seed=1)[0], synthetic_mixture(50, seed=1)[0])
    assert not torch.equal(synthetic_mixture(50, seed=1)[0], synthetic_mixture(50, seed=2)[0])
