from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ml.baselines.paper import PAPER_RECIPE, PaperRecipe, forget_samples, forget_variational
from ml.errors import InvalidInput, NumericalFailure
from ml.inference.variational import train
from ml.models.gmm import GaussianMixture
from ml.models.potential import Potential
from ml.models.synthetic import synthetic_mixture
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.solvers import solve_neumann
from tests.ml.conftest import Scene
from tests.ml.likelihoods import LinearRegression, Mixture, regression_data, slope

EXACT = PaperRecipe(solver="cholesky")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_default_recipe_is_the_paper_s() -> None:
    assert PaperRecipe(group_size=4, solver="neumann", num_terms=32, num_samples=5) == PAPER_RECIPE


def test_a_variational_step_in_closed_form() -> None:
    """One component: m⁻ = m + Σ(m-x)/P and s⁻ = s + k·s/(2P), P = 1/σ² + n the precision with the group present."""
    data = synthetic_mixture(60, seed=0)[0]
    precision = 0.8**-2 + 60
    mean = data.sum(0, keepdim=True) / precision
    posterior = MeanFieldGaussian(mean, torch.full_like(mean, precision**-0.5))
    processed = forget_variational(GaussianMixture(1, 2, 0.8), posterior, data, torch.arange(4), EXACT)
    assert torch.allclose(processed.mean, mean + (mean - data[:4]).sum(0) / precision, rtol=0, atol=1e-14)
    assert torch.allclose(processed.std, posterior.std * (1 + 2 / precision), rtol=1e-14, atol=0)


def least_squares_steps(data: Tensor, theta: Tensor, groups: list[Tensor]) -> Tensor:
    """Return θ + H(S)⁻¹ Σ ∇h, group by group, S including the group: the definition, in closed form."""
    for group in groups:
        x, removed = data[:, :-1], torch.isin(torch.arange(len(data)), group)
        hessian = torch.eye(x.shape[1], dtype=x.dtype) + x.T @ x
        residual = data[removed, -1] - x[removed] @ theta
        theta = theta - torch.linalg.solve(hessian, x[removed].T @ residual)
        # A row of zeros has no effect, and keeps the positions of the others.
        data = torch.where(removed.unsqueeze(1), 0.0, data)
    return theta


def test_each_group_is_removed_with_itself_still_present() -> None:
    data = regression_data(40, 3, seeded())
    mean, covariance = LinearRegression(3).posterior(data)
    samples = mean + torch.randn(12, 3, generator=seeded(1), dtype=torch.float64) @ torch.linalg.cholesky(covariance).T
    forgotten = torch.tensor([7, 3, 30, 21, 9, 0])
    everything = replace(EXACT, num_samples=12)
    moved = forget_samples(LinearRegression(3), samples, data, forgotten, seeded(), everything)
    expected = least_squares_steps(data, samples.mean(0), [forgotten[:4], forgotten[4:]])
    assert torch.allclose(moved.mean(0), expected, rtol=0, atol=1e-13)
    assert torch.allclose(moved - moved.mean(0), samples - samples.mean(0), rtol=0, atol=1e-13)


def test_the_recursion_converges_to_the_exact_inverse(scene: Scene) -> None:
    forgotten = scene.of_classes(0, 1, each=10)
    exact = forget_variational(scene.family, scene.posterior, scene.data, forgotten, EXACT).flat()
    gaps = [
        float((forget_variational(scene.family, scene.posterior, scene.data, forgotten, recipe).flat() - exact).norm())
        for recipe in (replace(PAPER_RECIPE, num_terms=2), PAPER_RECIPE, replace(PAPER_RECIPE, num_terms=500))
    ]
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-12


def test_products_by_automatic_differentiation_are_those_of_the_closed_form_hessian(scene: Scene) -> None:
    forgotten = scene.of_classes(0, 1, each=5)
    expected, data = scene.posterior, scene.data
    for group in (forgotten[:4], forgotten[4:8], forgotten[8:]):
        hessian = scene.family.expand(expected, data).hessian
        vector = scene.family.group_gradient(expected, scene.data[group])
        solution = solve_neumann(lambda direction, hessian=hessian: hessian @ direction, vector, 32, 1 / len(data))
        expected = expected.with_flat(expected.flat() + solution.x)
        data = scene.retained(forgotten[: 2000 - len(data) + len(group)])
    processed = forget_variational(scene.family, scene.posterior, scene.data, forgotten)
    assert float((expected.flat() - scene.posterior.flat()).norm()) > 1e-3
    assert torch.allclose(processed.flat(), expected.flat(), rtol=0, atol=1e-14)
    assert not processed.flat().requires_grad


def test_the_recursion_on_samples_converges_to_the_exact_inverse() -> None:
    data = synthetic_mixture(200, seed=1)[0]
    samples = class_centres(data) + 0.05 * torch.randn(6, 8, generator=seeded(2), dtype=torch.float64)
    forgotten = torch.arange(8)
    exact, short, long = (
        forget_samples(Mixture(), samples, data, forgotten, seeded(), recipe)
        for recipe in (EXACT, PAPER_RECIPE, replace(PAPER_RECIPE, num_terms=200))
    )
    assert float((short - exact).norm()) > 1e-6
    assert torch.allclose(long, exact, rtol=0, atol=1e-11)


def class_centres(data: Tensor) -> Tensor:
    """Return the centres of the four classes, in their order."""
    return torch.stack([data[first::4].mean(0) for first in range(4)]).flatten()


def shifted_to_minimum(samples: Tensor, data: Tensor) -> Tensor:
    """Shift the samples to the minimum of E U(θ+Δ) over them: Δ̂ of the paper's theorem, by Newton's method."""
    potential = Potential(Mixture(), data)
    for _ in range(20):
        step = torch.linalg.solve(potential.mean_hessian(samples), potential.mean_gradient(samples))
        samples = samples - step
        if float(step.norm()) < 1e-13:
            return samples
    raise AssertionError("Newton's method did not converge")


def test_the_error_of_one_exact_step_on_the_sample_mean_falls_with_the_square_of_n() -> None:
    sizes, errors = [250, 500, 1000, 2000, 4000], []
    noise = torch.randn(8, 8, generator=seeded(3), dtype=torch.float64)
    datum = torch.tensor([[0.5, 2.0]], dtype=torch.float64)  # between two classes, where the potential is not quadratic
    recipe = PaperRecipe(group_size=1, solver="cholesky", num_samples=8)
    for n in sizes:
        data = torch.cat([datum, synthetic_mixture(n, seed=5)[0]])
        samples = shifted_to_minimum(class_centres(data[1:]) + noise * (4 / n) ** 0.5, data)
        moved = forget_samples(Mixture(), samples, data, torch.tensor([0]), seeded(), recipe)
        errors.append(float((moved.mean(0) - shifted_to_minimum(samples, data[1:]).mean(0)).norm()))
    assert -2.2 < slope(sizes, errors) < -1.8


def test_eight_hundred_points_by_variational_inference(scene: Scene) -> None:
    """The paper's experiment: small groups help much, a single group little, and the recursion loses width."""
    forgotten = scene.of_classes(0, 1, each=400)
    retrained = train(scene.family, scene.retained(forgotten), scene.start, tolerance=0.0).posterior
    nothing, paper, exact, at_once = (
        posterior.kl(retrained)
        for posterior in (
            scene.posterior,
            forget_variational(scene.family, scene.posterior, scene.data, forgotten),
            forget_variational(scene.family, scene.posterior, scene.data, forgotten, EXACT),
            forget_variational(scene.family, scene.posterior, scene.data, forgotten, replace(EXACT, group_size=800)),
        )
    )
    assert 10 < nothing < 20
    assert 5 < at_once < nothing
    assert 2 * exact < paper < 0.3
    assert 0.01 < exact < 0.1


def test_a_step_beyond_zero_width_is_a_numerical_failure() -> None:
    """Far from an optimum the step would make σ negative."""
    posterior = MeanFieldGaussian(torch.zeros(1, 1).double(), torch.full((1, 1), 1e-3).double())
    data = torch.zeros(6, 1, dtype=torch.float64)
    family = Shrinking(1, 1, 1.0)
    with pytest.raises(NumericalFailure, match="smaller groups"):
        forget_variational(family, posterior, data, torch.arange(2), EXACT)


class Shrinking(GaussianMixture):
    """Mixture with the gradient of the group reversed and enlarged, so that forgetting shrinks σ."""

    def group_gradient(self, posterior: MeanFieldGaussian, group: Tensor) -> Tensor:
        return -1e6 * super().group_gradient(posterior, group)


def test_curvature_too_large_for_the_paper_s_scale_is_a_numerical_failure() -> None:
    data = 10 * regression_data(40, 3, seeded())
    samples = torch.zeros(4, 3, dtype=torch.float64)
    with pytest.raises(NumericalFailure, match="smaller scale"):
        forget_samples(LinearRegression(3), samples, data, torch.arange(4), seeded())
    assert forget_samples(LinearRegression(3), samples, data, torch.arange(4), seeded(), EXACT).isfinite().all()


def test_the_draws_follow_the_generator() -> None:
    data = synthetic_mixture(80, seed=1)[0]
    samples = class_centres(data) + 0.2 * torch.randn(30, 8, generator=seeded(2), dtype=torch.float64)
    first, same, different = (
        forget_samples(Mixture(), samples, data, torch.arange(4), seeded(seed), EXACT) for seed in (0, 0, 1)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, different)


@pytest.mark.parametrize(
    ("forgotten", "message"),
    [([], "at least one"), ([80], "outside"), ([1, 1], "twice"), (list(range(80)), "delete the model")],
)
def test_rows_that_cannot_be_forgotten_are_invalid_input(forgotten: list[int], message: str) -> None:
    data = synthetic_mixture(80, seed=1)[0]
    rows = torch.tensor(forgotten, dtype=torch.int64)
    family = GaussianMixture(4, 2, 1.0)
    with pytest.raises(InvalidInput, match=message):
        forget_samples(Mixture(), class_centres(data).unsqueeze(0), data, rows, seeded())
    with pytest.raises(InvalidInput, match=message):
        forget_variational(family, family.initial(data, 0), data, rows)


@pytest.mark.parametrize(
    "settings", [{"group_size": 0}, {"num_terms": 0}, {"num_samples": 0}, {"solver": "conjugate gradients"}]
)
def test_invalid_recipes_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=r"pass at least 1|choose"):
        PaperRecipe(**settings)  # type: ignore[arg-type]


def test_arguments_do_not_change(scene: Scene) -> None:
    samples = scene.posterior.mean.flatten().repeat(3, 1)
    forgotten = torch.arange(6)
    before = [tensor.clone() for tensor in (samples, scene.data, scene.posterior.flat(), forgotten)]
    forget_samples(Mixture(), samples, scene.data, forgotten, seeded(), EXACT)
    forget_variational(scene.family, scene.posterior, scene.data, forgotten)
    after = [samples, scene.data, scene.posterior.flat(), forgotten]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
