import math

import pytest
import torch

from ml.models.frozen_noise import frozen_noise, pull_back, pull_back_curvature

CPU = torch.device("cpu")


@pytest.mark.parametrize(("draws", "size"), [(2, 5), (8, 3), (8, 4), (8, 30), (40, 20)])
def test_moments_are_those_of_a_gaussian_as_far_as_the_draws_allow(draws: int, size: int) -> None:
    noise = frozen_noise(draws, size, 7, CPU)
    assert noise.shape == (draws, size)
    assert torch.equal(noise[: draws // 2], -noise[draws // 2 :])
    second = noise.T @ noise / draws
    for group in torch.arange(size).split(draws // 2):
        expected = torch.eye(len(group), dtype=torch.float64)
        assert torch.allclose(second[group][:, group], expected, rtol=0, atol=1e-13)


def test_many_draws_are_normal() -> None:
    """Quantiles of 20,000 draws, and neighbours that are independent beyond their second moment."""
    noise = frozen_noise(20_000, 2, 3, CPU)
    probabilities = torch.tensor([0.01, 0.1, 0.3, 0.7, 0.9, 0.99], dtype=torch.float64)
    expected = torch.distributions.Normal(0.0, 1.0).icdf(probabilities)
    assert torch.allclose(noise[:, 0].quantile(probabilities), expected, atol=0.06)
    assert float((noise[:, 0].square() * noise[:, 1].square()).mean()) == pytest.approx(1.0, abs=0.1)


def test_signs_are_not_all_alike_with_a_single_pair() -> None:
    noise = frozen_noise(2, 200, 0, CPU)
    assert set(noise.flatten().tolist()) == {-1.0, 1.0}
    assert abs(float(noise[0].mean())) < 3 / math.sqrt(200)


def test_the_noise_depends_on_the_seed_and_not_on_the_global_generator() -> None:
    frozen_noise.cache_clear()
    first = frozen_noise(8, 5, 1, CPU).clone()
    frozen_noise.cache_clear()
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert torch.equal(frozen_noise(8, 5, 1, CPU), first)
    assert not torch.equal(frozen_noise(8, 5, 2, CPU), first)
    assert torch.equal(torch.get_rng_state(), state)


def test_pulling_back_is_the_chain_rule() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = frozen_noise(6, 4, 0, CPU)
    gradients = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    roots = torch.randn(6, 4, 4, generator=generator, dtype=torch.float64)
    curvatures = roots @ roots.transpose(1, 2)
    jacobians = [torch.cat([torch.eye(4, dtype=torch.float64), torch.diag(epsilon)], 1) for epsilon in noise]
    gradient = torch.stack([e.T @ g for e, g in zip(jacobians, gradients, strict=True)]).mean(0)
    curvature = torch.stack([e.T @ c @ e for e, c in zip(jacobians, curvatures, strict=True)]).mean(0)
    assert torch.allclose(pull_back(noise, gradients), gradient, rtol=0, atol=1e-14)
    lifted = pull_back_curvature(noise, curvatures)
    assert torch.allclose(lifted, curvature, rtol=0, atol=1e-13)
    assert torch.equal(lifted, lifted.T)
