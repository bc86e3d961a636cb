"""On a network with one layer the influence is known exactly; a trained perceptron is compared with retraining."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ml.errors import InvalidInput, NumericalFailure
from ml.forgetting import network as network_forgetting
from ml.forgetting.network import (
    DEFAULT_RECIPE,
    NetworkRecipe,
    descend,
    forget_network,
    forget_network_samples,
    influence_step,
    sampled_precision,
    trusted_step,
)
from ml.inference.averaged_descent import AveragedDescent
from ml.models.network import Network
from ml.models.network_energy import NetworkEnergy, frozen_draws
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.posteriors.sample_set import SampleSet
from ml.solvers import Solution
from tests.ml.networks import (
    TINY,
    OneLayer,
    dense_gauss_newton,
    labelled_rows,
    learnable_rows,
    minimised,
    random_theta,
)

EXACT = NetworkRecipe(draws=2, damping=1e-9, tolerance=1e-12, max_products=200)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows_of(energy: NetworkEnergy, without: Tensor) -> Tensor:
    keep = torch.ones(len(energy.data), dtype=torch.bool)
    keep[without] = False
    return torch.nonzero(keep).flatten()


def trained(network: Network, n: int, std: float) -> tuple[NetworkEnergy, MeanFieldGaussian]:
    """Return a posterior at a minimum of the frozen energy of its two draws, with fixed widths."""
    data = learnable_rows(network, n)
    start = MeanFieldGaussian(network.initial(seed=4).mean, torch.full((network.parameter_count,), std).double())
    before = NetworkEnergy(network, data, frozen_draws(start, 2, seed=0))
    posterior = MeanFieldGaussian(start.mean + minimised(before, torch.arange(n)), start.std)
    return NetworkEnergy(network, data, frozen_draws(posterior, 2, seed=0)), posterior


def test_without_damping_it_is_the_exact_influence_if_logits_are_linear() -> None:
    """The retained rows are equal, so that any half of them has the curvature of the whole."""
    network, theta = OneLayer(), random_theta(OneLayer())
    data = torch.cat([labelled_rows(network, 3), labelled_rows(network, 1, seed=7).repeat(20, 1)])
    energy = NetworkEnergy(network, data, theta.unsqueeze(0))
    forgotten, precision = torch.arange(3), torch.full_like(theta, network.prior_std**-2)
    # The exact influence is of first order only: an agreement near 0 accepts it in any case.
    step = influence_step(energy, precision, forgotten, seeded(), replace(EXACT, min_agreement=1e-9))
    matrix = dense_gauss_newton(network, theta, data[3:]) + torch.diag(precision)
    at = theta.clone().requires_grad_()
    group = torch.autograd.grad(-network.log_likelihood(at, data[:3]).sum(), at)[0]
    assert torch.allclose(step.drift, torch.linalg.solve(matrix, group), rtol=1e-6, atol=1e-8)
    assert step.residual < 1e-11


def test_descent_brings_a_large_group_to_the_minimum_without_it() -> None:
    energy, posterior = trained(OneLayer(), 100, std=0.02)
    forgotten = torch.arange(30)
    truth = minimised(energy, rows_of(energy, forgotten))
    recipe = replace(DEFAULT_RECIPE, draws=2, large_share=0.3, descent=AveragedDescent(500, 300, 40, 1e-2))
    step = influence_step(energy, posterior.std**-2, forgotten, seeded(), recipe)
    drift = descend(energy, step.drift, forgotten, seeded(), recipe)
    assert float((drift - truth).norm()) < 0.5 * float((step.drift - truth).norm())
    small = descend(energy, step.drift, forgotten, seeded(), replace(recipe, large_share=0.31))
    assert small is step.drift


def test_the_curvature_comes_from_the_first_half_of_the_chosen_rows_and_is_scaled_up() -> None:
    network, theta, data = OneLayer(), random_theta(OneLayer()), learnable_rows(OneLayer(), 60)
    energy, rows = NetworkEnergy(network, data, theta.unsqueeze(0)), torch.arange(60)
    downhill, precision = 0.01 * random_theta(network, 3), torch.full_like(theta, 2.0)
    recipe = replace(EXACT, min_agreement=1e-9, damping=0.5)
    step = trusted_step(energy, precision, downhill, rows, 20, seeded(5), recipe)
    chosen = torch.randperm(60, generator=seeded(5))[:20]
    matrix = 3 * dense_gauss_newton(network, theta, data[chosen])
    matrix += torch.eye(len(theta), dtype=torch.float64) * (network.prior_std**-2 + step.damping * 2.0)
    assert torch.allclose(step.drift, torch.linalg.solve(matrix, downhill), rtol=1e-8, atol=1e-11)


def test_the_agreement_is_1_if_the_energy_is_quadratic() -> None:
    """A tiny step on equal rows: the judging rows confirm what the model predicts."""
    network, theta = OneLayer(), random_theta(OneLayer())
    data = labelled_rows(network, 1).repeat(40, 1)
    energy = NetworkEnergy(network, data, theta.unsqueeze(0))
    downhill, precision = 1e-4 * random_theta(network, 3), torch.full_like(theta, 4.0)
    step = trusted_step(
        energy, precision, downhill, torch.arange(40), 20, seeded(), replace(DEFAULT_RECIPE, tolerance=1e-8)
    )
    assert step.agreement == pytest.approx(1.0, abs=1e-3)


def test_smaller_dampings_are_tried_if_the_first_agrees() -> None:
    energy, posterior = trained(OneLayer(), 200, std=0.02)
    step = influence_step(
        energy, posterior.std**-2, torch.tensor([0, 7, 9]), seeded(), replace(DEFAULT_RECIPE, draws=2)
    )
    assert step.damping < DEFAULT_RECIPE.damping
    assert step.agreement >= DEFAULT_RECIPE.min_agreement
    assert step.products >= 2


def test_the_damping_grows_until_the_judging_rows_agree() -> None:
    """A single row gives the curvature of few of the sixteen directions, and the judging rows find the others steep."""
    network, theta = OneLayer(), torch.zeros(OneLayer().parameter_count, dtype=torch.float64)
    data = labelled_rows(network, 40)
    data[:, :-1] *= 5
    energy = NetworkEnergy(network, data, theta.unsqueeze(0))
    unit, downhill = torch.ones_like(theta), 0.01 * random_theta(network, 3)
    recipe = replace(DEFAULT_RECIPE, damping=1.0, min_agreement=0.5, tolerance=1e-3)
    step = trusted_step(energy, unit, downhill, torch.arange(40), 1, seeded(), recipe)
    assert step.damping in [network_forgetting._GROWTH**grown for grown in range(1, 8)]
    assert step.agreement >= recipe.min_agreement


def test_a_decrease_that_was_not_predicted_is_not_trusted() -> None:
    """With 10 the energy falls most, but by a fifth of the prediction; with 160 it falls as predicted."""
    outcomes = {10.0: (-1.0, -0.2), 40.0: (-0.5, -0.1), 2.5: (-2.0, -0.1), 160.0: (-0.2, -0.15)}
    nothing = Solution(torch.zeros(1), residual=0.0, iterations=1, solver="none", converged=True)
    dampings: list[float] = []

    def attempt(damping: float) -> network_forgetting._Trial:
        dampings.append(damping)
        return network_forgetting._Trial(damping, nothing, *outcomes[damping])

    assert network_forgetting._most_trusted(attempt, DEFAULT_RECIPE).damping == 160
    assert dampings == [10, 40, 2.5, 160]


def test_it_fails_if_no_damping_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    energy, posterior = trained(OneLayer(), 60, std=0.02)
    monkeypatch.setattr(network_forgetting, "_tilted", lambda *_: lambda _drift: 1.0)
    with pytest.raises(NumericalFailure, match="Train it to convergence"):
        influence_step(energy, posterior.std**-2, torch.tensor([0, 1]), seeded(), EXACT)


def test_a_zero_gradient_gives_no_step() -> None:
    energy, posterior = trained(OneLayer(), 20, std=0.02)
    still = torch.zeros_like(posterior.mean)
    step = trusted_step(energy, posterior.std**-2, still, torch.arange(20), 5, seeded(), DEFAULT_RECIPE)
    assert torch.equal(step.drift, still)
    assert (step.products, step.residual) == (0, 0.0)


@pytest.mark.parametrize(("network", "share"), [(OneLayer(), 0.6), (TINY, 0.9)])
def test_forgetting_comes_closer_to_retraining_than_doing_nothing(network: Network, share: float) -> None:
    energy, posterior = trained(network, 400, std=0.02)
    forgotten = torch.nonzero(energy.data[:, -1] == 1).flatten()[:20]
    truth = minimised(energy, rows_of(energy, forgotten))
    after = forget_network(network, posterior, energy.data, forgotten, seeded(), replace(DEFAULT_RECIPE, draws=2))
    drift = after.posterior.mean - posterior.mean
    assert float((drift - truth).norm()) < share * float(truth.norm())
    assert after.seconds > 0


def test_widths_grow_by_the_contribution_of_the_rows_and_at_most_double() -> None:
    data, n = learnable_rows(TINY, 200), 200
    wide = torch.full((TINY.parameter_count,), 0.2, dtype=torch.float64)
    wide[::2] = 0.7  # wider than the prior's 0.5 already: stays
    posterior = MeanFieldGaussian(random_theta(TINY), wide)
    many = forget_network(TINY, posterior, data, torch.arange(n - 40), seeded(), replace(DEFAULT_RECIPE, damping=1e4))
    ratio = many.posterior.std / posterior.std
    assert bool((ratio >= 1 - 1e-12).all())
    assert torch.allclose(many.posterior.std[::2], wide[::2], rtol=1e-12, atol=0)
    assert float(ratio.max()) == pytest.approx(2.0, rel=1e-12)
    few = forget_network(TINY, posterior, data, torch.tensor([3]), seeded(), replace(DEFAULT_RECIPE, damping=1e4))
    assert 1.0 < float((few.posterior.std / posterior.std)[1::2].median()) < float(ratio[1::2].median())


def test_forgetting_stops_at_the_width_of_the_prior() -> None:
    data, std = learnable_rows(TINY, 200), torch.full((TINY.parameter_count,), 0.45, dtype=torch.float64)
    posterior = MeanFieldGaussian(random_theta(TINY), std)
    after = forget_network(TINY, posterior, data, torch.arange(160), seeded(), replace(DEFAULT_RECIPE, damping=1e4))
    assert float(after.posterior.std.max()) == pytest.approx(TINY.prior_std, rel=1e-12)


def test_all_samples_drift_equally_and_keep_their_chains() -> None:
    energy, posterior = trained(TINY, 300, std=0.02)
    noise = torch.randn(10, TINY.parameter_count, generator=seeded(2), dtype=torch.float64)
    before = SampleSet(posterior.mean + 0.02 * noise, torch.arange(10) % 2)
    forgotten = torch.nonzero(energy.data[:, -1] == 1).flatten()[:15]
    after = forget_network_samples(TINY, before, energy.data, forgotten, seeded(), replace(DEFAULT_RECIPE, draws=4))
    moved = after.posterior.samples - before.samples
    assert torch.allclose(moved, moved[0].expand(10, -1), rtol=0, atol=1e-14)
    assert float(moved[0].norm()) > 1e-3
    assert torch.equal(after.posterior.chain, before.chain)
    again = forget_network_samples(TINY, before, energy.data, forgotten, seeded(), replace(DEFAULT_RECIPE, draws=4))
    assert torch.equal(again.posterior.samples, after.posterior.samples)


def test_a_group_of_a_twentieth_descends_and_a_smaller_one_only_shifts() -> None:
    energy, _ = trained(TINY, 300, std=0.02)
    samples = SampleSet(energy.draws, torch.zeros(2, dtype=torch.int64))
    small = forget_network_samples(TINY, samples, energy.data, torch.arange(14), seeded())
    assert torch.allclose(small.posterior.samples, samples.samples + small.step.drift, rtol=0, atol=1e-12)
    large = forget_network_samples(TINY, samples, energy.data, torch.arange(15), seeded())
    assert not torch.allclose(large.posterior.samples, samples.samples + large.step.drift, rtol=0, atol=1e-4)


def test_the_sampled_precision_is_near_the_exact_diagonal() -> None:
    data, theta = labelled_rows(TINY, 400), random_theta(TINY)
    energy = NetworkEnergy(TINY, data, theta.unsqueeze(0))
    recipe = replace(DEFAULT_RECIPE, min_rows=200)
    sampled = torch.stack([sampled_precision(energy, seeded(seed), recipe) for seed in range(40)]).mean(0)
    exact = dense_gauss_newton(TINY, theta, data).diagonal() + TINY.prior_std**-2
    assert torch.allclose(sampled, exact, rtol=0.25, atol=0)


def test_the_generator_decides_the_result() -> None:
    energy, posterior = trained(TINY, 200, std=0.02)
    forgotten, recipe = torch.tensor([1, 5, 8]), replace(DEFAULT_RECIPE, draws=2)
    first, again, other = (
        forget_network(TINY, posterior, energy.data, forgotten, seeded(seed), recipe).posterior for seed in (0, 0, 1)
    )
    assert torch.equal(first.flat(), again.flat())
    assert not torch.equal(first.flat(), other.flat())


def test_a_single_retained_row_both_gives_the_curvature_and_judges() -> None:
    network = OneLayer()
    data, theta = labelled_rows(network, 2), 0.1 * random_theta(network)
    energy = NetworkEnergy(network, data, theta.unsqueeze(0))
    step = influence_step(energy, torch.full_like(theta, 4.0), torch.tensor([0]), seeded(), DEFAULT_RECIPE)
    assert float(step.drift.norm()) > 0


@pytest.mark.parametrize(
    ("forgotten", "message"),
    [
        (torch.tensor([], dtype=torch.int64), "name at least one"),
        (torch.tensor([1, 1]), "named twice"),
        (torch.arange(20), "delete the model"),
        (torch.tensor([20]), r"outside 0\.\.19"),
        (torch.tensor([[1]]), "1-D tensor"),
    ],
)
def test_an_invalid_group_is_refused(forgotten: Tensor, message: str) -> None:
    data, posterior = labelled_rows(TINY, 20), TINY.initial(seed=0)
    samples = SampleSet(torch.stack([posterior.mean, posterior.mean + 0.1]), torch.zeros(2, dtype=torch.int64))
    generator = seeded()
    with pytest.raises(InvalidInput, match=message):
        forget_network(TINY, posterior, data, forgotten, generator)
    with pytest.raises(InvalidInput, match=message):
        forget_network_samples(TINY, samples, data, forgotten, generator)
    assert torch.equal(generator.get_state(), seeded().get_state())


def test_arguments_that_do_not_fit_the_network_are_refused_and_unchanged() -> None:
    data, posterior, forgotten = labelled_rows(TINY, 20), TINY.initial(seed=0), torch.tensor([1])
    mean = posterior.mean.clone()
    with pytest.raises(InvalidInput, match="31 parameters"):
        forget_network(TINY, MeanFieldGaussian(posterior.mean[1:], posterior.std[1:]), data, forgotten, seeded())
    with pytest.raises(InvalidInput, match="4 columns"):
        forget_network(TINY, posterior, data[:, 1:], forgotten, seeded())
    broken = data.clone()
    broken[3, 0] = torch.nan
    with pytest.raises(InvalidInput, match="NaN"):
        forget_network(TINY, posterior, broken, forgotten, seeded())
    short = SampleSet(torch.zeros(2, 30, dtype=torch.float64), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(InvalidInput, match="31 parameters"):
        forget_network_samples(TINY, short, data, forgotten, seeded())
    assert torch.equal(posterior.mean, mean)


def test_a_recipe_is_checked_and_limits_its_sample() -> None:
    assert DEFAULT_RECIPE.sample_size(forgotten=1, retained=50_000) == 512
    assert DEFAULT_RECIPE.sample_size(forgotten=100, retained=50_000) == 800
    assert DEFAULT_RECIPE.sample_size(forgotten=5_000, retained=50_000) == 6144
    assert DEFAULT_RECIPE.sample_size(forgotten=100, retained=1_000) == 500
    assert DEFAULT_RECIPE.sample_size(forgotten=100, retained=1) == 1
    with pytest.raises(InvalidInput, match="positive damping"):
        NetworkRecipe(damping=0.0)
    with pytest.raises(InvalidInput, match="between 0 and 1"):
        NetworkRecipe(min_agreement=1.0)
    with pytest.raises(InvalidInput, match="max_rows"):
        NetworkRecipe(max_rows=0)


MEMORY_SCRIPT = """
import dataclasses
import resource
import torch
from ml.inference.averaged_descent import AveragedDescent
from ml.models.lenet import LeNet5
from ml.forgetting.network import DEFAULT_RECIPE, forget_network

torch.set_num_threads(1)
network, generator = LeNet5(), torch.Generator().manual_seed(0)
data = torch.rand(60_000, 1025, generator=generator) - 0.5
data[:, -1] = torch.arange(60_000) % 10
# Few iterations: memory is the same at each.
short = dataclasses.replace(DEFAULT_RECIPE, descent=AveragedDescent(iterations=20, averaged=10))
forget_network(network, network.initial(seed=1), data, torch.arange(0, 60_000, 10), generator, short)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.soak
def test_six_thousand_of_sixty_thousand_images_in_four_gibibytes() -> None:
    """In a process of its own, whose peak is then that of forgetting, data included."""
    finished = subprocess.run([sys.executable, "-c", MEMORY_SCRIPT], capture_output=True, text=True, check=True)
    assert int(finished.stdout) * 1024 < 4 * 2**30
