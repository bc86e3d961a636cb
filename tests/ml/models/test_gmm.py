from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.func import grad, jacrev

from ml.errors import InvalidInput
from ml.models import gmm_bounds
from ml.models.gmm import GaussianMixture
from ml.models.synthetic import synthetic_mixture
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.conftest import Scene, data_energy, energy, random_posterior
from tests.ml.models.attacks import lipschitz

SHAPES = [(1, 1), (1, 3), (3, 1), (4, 2), (3, 5)]


def random_setting(
    components: int, dimensions: int, rows: int = 40
) -> tuple[GaussianMixture, MeanFieldGaussian, torch.Tensor]:
    generator = torch.Generator().manual_seed(10 * components + dimensions)
    data = 1.5 * torch.randn(rows, dimensions, generator=generator, dtype=torch.float64)
    return GaussianMixture(components, dimensions, 1.3), random_posterior(components, dimensions, generator), data


@pytest.mark.parametrize(("components", "dimensions"), SHAPES)
def test_energy_gradient_and_hessian_agree_with_automatic_differentiation(components: int, dimensions: int) -> None:
    family, posterior, data = random_setting(components, dimensions)
    at = family.expand(posterior, data)

    def reference(flat: torch.Tensor) -> torch.Tensor:
        return energy(family, flat, data)

    flat = posterior.flat()
    assert at.energy == pytest.approx(float(reference(flat)), rel=1e-13)
    assert torch.allclose(at.gradient, grad(reference)(flat), rtol=0, atol=1e-12)
    assert torch.allclose(at.hessian, jacrev(grad(reference))(flat), rtol=0, atol=1e-11)
    assert torch.equal(at.hessian, at.hessian.T)


@pytest.mark.parametrize(("components", "dimensions"), SHAPES)
def test_the_differentiable_energy_agrees_with_the_expansion(components: int, dimensions: int) -> None:
    family, posterior, data = random_setting(components, dimensions)
    at, flat = family.expand(posterior, data), posterior.flat()

    def differentiable(flat: torch.Tensor) -> torch.Tensor:
        return family.energy(flat, data)

    assert float(differentiable(flat)) == pytest.approx(at.energy, rel=1e-13)
    assert torch.allclose(grad(differentiable)(flat), at.gradient, rtol=0, atol=1e-12)
    assert torch.allclose(jacrev(grad(differentiable))(flat), at.hessian, rtol=0, atol=1e-11)


@pytest.mark.parametrize(("components", "dimensions"), SHAPES)
def test_the_gradient_of_a_group_leaves_the_prior_out(components: int, dimensions: int) -> None:
    family, posterior, data = random_setting(components, dimensions)
    expected = grad(lambda flat: data_energy(family, flat, data[:7]))(posterior.flat())
    assert torch.allclose(family.group_gradient(posterior, data[:7]), expected, rtol=0, atol=1e-12)


def test_the_energy_is_a_true_negative_evidence_lower_bound() -> None:
    """One component is conjugate: at its optimum the bound is tight, and the evidence is a Gaussian density."""
    data = synthetic_mixture(30, seed=2)[0]
    family = GaussianMixture(1, 2, 1.7)
    precision = 1.7**-2 + 30
    optimum = MeanFieldGaussian(
        data.sum(0, keepdim=True) / precision, torch.full((1, 2), precision**-0.5, dtype=torch.float64)
    )
    covariance = torch.eye(30, dtype=torch.float64) + 1.7**2
    evidence = MultivariateNormal(torch.zeros(30, dtype=torch.float64), covariance).log_prob(data.T).sum()
    assert family.expand(optimum, data).energy == pytest.approx(-float(evidence), rel=1e-12)


def test_chunks_change_nothing_but_rounding(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    data = scene.data[:100]
    whole = scene.family.expand(scene.posterior, data)
    whole_lipschitz = lipschitz(scene.family, scene.posterior, data, 1e-3)
    whole_sweep = scene.family.sweep(scene.posterior, data).flat()
    whole_group = scene.family.group_gradient(scene.posterior, data)
    monkeypatch.setattr(gmm_bounds, "CHUNK_ROWS", 7)
    parts = scene.family.expand(scene.posterior, data)
    assert parts.energy == pytest.approx(whole.energy, rel=1e-13)
    assert torch.allclose(parts.gradient, whole.gradient, atol=1e-11)
    assert torch.allclose(parts.hessian, whole.hessian, atol=1e-11)
    assert lipschitz(scene.family, scene.posterior, data, 1e-3) == pytest.approx(whole_lipschitz, rel=1e-12)
    assert torch.allclose(scene.family.sweep(scene.posterior, data).flat(), whole_sweep, atol=1e-13)
    assert torch.allclose(scene.family.group_gradient(scene.posterior, data), whole_group, atol=1e-11)


def test_sweeps_never_raise_the_energy_and_stop_at_the_minimum(scene: Scene) -> None:
    posterior, energies = scene.start, []
    for _ in range(12):
        energies.append(scene.family.expand(posterior, scene.data).energy)
        posterior = scene.family.sweep(posterior, scene.data)
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(energies))
    assert energies[0] - energies[-1] > 1
    swept = scene.family.sweep(scene.posterior, scene.data)
    assert float((swept.flat() - scene.posterior.flat()).norm()) < 1e-12


def test_the_initial_means_are_rows_chosen_by_the_seed(scene: Scene) -> None:
    start = scene.family.initial(scene.data, seed=5)
    assert torch.equal(start.flat(), scene.family.initial(scene.data, seed=5).flat())
    assert not torch.equal(start.mean, scene.family.initial(scene.data, seed=6).mean)
    assert all(bool((scene.data == centre).all(1).any()) for centre in start.mean)
    assert torch.allclose(start.std, torch.full((4, 2), (1 + 500) ** -0.5, dtype=torch.float64))


def test_the_initial_means_spread_over_separate_classes() -> None:
    """k-means++ picks one row of each of three far-away clumps, whatever the seed; uniform picks would often not."""
    clumps = torch.tensor([[0.0], [1000.0], [-1000.0]], dtype=torch.float64)
    data = (clumps + torch.linspace(0, 1, 20, dtype=torch.float64)).reshape(-1, 1)
    family = GaussianMixture(3, 1, 1.0)
    for seed in range(50):
        assert len(set((family.initial(data, seed).mean / 1000).round().flatten().tolist())) == 3


def test_equal_rows_still_give_a_start() -> None:
    data = torch.ones(5, 2, dtype=torch.float64)
    assert torch.equal(GaussianMixture(3, 2, 1.0).initial(data, 0).mean, torch.ones(3, 2, dtype=torch.float64))


def test_far_away_rows_do_not_overflow() -> None:
    family, posterior, _ = random_setting(3, 2)
    at = family.expand(posterior, torch.full((5, 2), 1e50, dtype=torch.float64))
    assert math.isfinite(at.energy)
    assert bool(torch.isfinite(at.hessian).all())
    assert at.rounding.gradient == math.inf  # float64 has no digits left there, and the bound says so


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (torch.zeros(10, dtype=torch.float64), "rows of 2 columns"),
        (torch.zeros(10, 3, dtype=torch.float64), "rows of 2 columns"),
        (torch.zeros(10, 2), "float64"),
        (torch.full((10, 2), math.nan, dtype=torch.float64), "NaN"),
        (torch.full((10, 2), math.inf, dtype=torch.float64), "infinity"),
        (torch.full((10, 2), 1e60, dtype=torch.float64), "1e50"),
        (torch.zeros(3, 2, dtype=torch.float64), "3 rows are too few for 4 components"),
        (torch.zeros(0, 2, dtype=torch.float64), "0 rows are too few"),
    ],
)
def test_data_that_cannot_be_modelled_is_invalid_input(data: torch.Tensor, message: str) -> None:
    family = GaussianMixture(4, 2, 1.0)
    with pytest.raises(InvalidInput, match=message):
        family.check_data(data)
    with pytest.raises(InvalidInput, match=message):
        family.initial(data, 0)


@pytest.mark.parametrize(
    ("shape", "mean", "std", "message"),
    [
        ((3, 2), 0.0, 1.0, r"this mixture needs \(4, 2\)"),
        ((4, 2), 1e51, 1.0, "beyond 1e50"),
        ((4, 2), 0.0, 1e-51, "below 1e-50"),
    ],
)
def test_a_posterior_of_another_model_is_invalid_input(
    shape: tuple[int, int], mean: float, std: float, message: str
) -> None:
    posterior = MeanFieldGaussian(
        torch.full(shape, mean, dtype=torch.float64), torch.full(shape, std, dtype=torch.float64)
    )
    with pytest.raises(InvalidInput, match=message):
        GaussianMixture(4, 2, 1.0).check_posterior(posterior)
