"""Gradients against closed forms and each other; training against a closed-form optimum, and on digits."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from benchmarks.datasets.digits import digits
from ml.errors import InvalidInput, NumericalFailure
from ml.inference.bayes_by_backprop import (
    PAPER_BNN,
    SAFE_BNN,
    BayesByBackprop,
    estimate_energy,
    outputs_with_weight_noise,
    train_network,
)
from ml.models.mlp import MLP
from ml.models.network import Convolution, Layer, Network, dense_layers, identity
from ml.posteriors.mean_field import MeanFieldGaussian

FULL_BATCH = BayesByBackprop(1_500, 40, 0.05, decay=0.3, decay_every=300, draws=4, optimiser="adam")


@dataclass(frozen=True)
class Regression(Network):
    """y = w·x + b + unit noise: energy and optimum are in closed form."""

    dimensions: int = 3
    prior_std: float = 0.8

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.dimensions,)

    @property
    def layers(self) -> tuple[Layer, ...]:
        return dense_layers(self.dimensions, 1)

    def check_data(self, data: Tensor) -> None:
        """Accept any targets."""

    def score(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return -(outputs.squeeze(1) - labels).square() / 2 - math.log(2 * math.pi) / 2


@dataclass(frozen=True)
class Filter(Network):
    """One convolution with two 2×2 maps. The score is a sum over positions, or depends on all of them jointly."""

    together: bool
    prior_std: float = 0.8

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (1, 4, 4)

    @property
    def layers(self) -> tuple[Layer, ...]:
        return (Convolution(1, 2, identity, kernel=3),)

    def score(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if self.together:
            return -outputs.flatten(1).sum(1).square() / 8
        return -outputs.sin().flatten(1).sum(1)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def regression_rows(n: int, dimensions: int = 3) -> Tensor:
    x = normal(n, dimensions, seed=0) * torch.linspace(0.5, 1.5, dimensions, dtype=torch.float64)
    return torch.cat([x, x.sum(1, keepdim=True) - 0.5 + normal(n, 1, seed=1)], 1)


def gradients(network: Network, rows: Tensor, config: BayesByBackprop, repeats: int) -> Tensor:
    """Return repeated estimates of ∇F̂ in (μ, log σ): (repeats, 2p)."""
    generator = torch.Generator().manual_seed(5)
    mean = (0.5 * normal(network.parameter_count, seed=2)).requires_grad_()
    log_std = (0.3 * normal(network.parameter_count, seed=3) - 1.0).requires_grad_()
    estimates = []
    for _ in range(repeats):
        energy = estimate_energy(network, mean, log_std, rows, 50, config, generator)
        estimates.append(torch.cat(torch.autograd.grad(energy, [mean, log_std])))
    return torch.stack(estimates)


def gap(first: Tensor, second: Tensor) -> float:
    """Return the largest difference of the means in standard errors."""
    error = (first.var(0) / len(first) + second.var(0) / len(second)).sqrt()
    return float(((first.mean(0) - second.mean(0)).abs() / error).max())


def local_and_sampled_gradients(network: Network, rows: Tensor, repeats: int) -> tuple[Tensor, Tensor]:
    config = dataclasses.replace(FULL_BATCH, draws=20)
    local = gradients(network, rows, config, repeats)
    return local, gradients(network, rows, dataclasses.replace(config, noise="weights"), repeats)


def relative_error(samples: Tensor) -> float:
    return float((samples.var(0) / len(samples)).sum().sqrt() / samples.mean(0).norm())


@pytest.mark.parametrize("noise", ["activations", "weights"])
def test_the_energy_of_a_linear_model_is_the_closed_form(noise: str) -> None:
    """E_q (y - a)² = (y - E a)² + Σ x_j² σ_j² + σ_b²."""
    network, rows = Regression(), regression_rows(6)
    config = dataclasses.replace(FULL_BATCH, draws=100, noise=noise)
    estimates = gradients(network, rows, config, 40)
    x = torch.cat([rows[:, :-1], torch.ones(6, 1)], 1)
    mean = (0.5 * normal(4, seed=2)).requires_grad_()
    log_std = (0.3 * normal(4, seed=3) - 1.0).requires_grad_()
    q = torch.distributions.Normal(mean, log_std.exp())
    prior = torch.distributions.Normal(torch.zeros(4, dtype=torch.float64), torch.tensor(0.8, dtype=torch.float64))
    misfit = (rows[:, -1] - x @ mean).square() + x.square() @ log_std.exp().square()
    energy = 50 * (misfit / 2).mean() + torch.distributions.kl_divergence(q, prior).sum()
    expected = torch.cat(torch.autograd.grad(energy, [mean, log_std], retain_graph=True))
    assert float(((estimates.mean(0) - expected).abs() / (estimates.std(0) / math.sqrt(40))).max()) < 4.5
    assert relative_error(estimates) < 0.02
    many = dataclasses.replace(config, draws=2_000)
    value = estimate_energy(network, mean, log_std, rows, 50, many, seeded())
    assert value.item() == pytest.approx(energy.item() + 25 * math.log(2 * math.pi), rel=0.03)


def test_without_rows_the_energy_is_the_distance_to_the_prior() -> None:
    mean, log_std = normal(4, seed=2), 0.3 * normal(4, seed=3) - 1.0
    energy = estimate_energy(Regression(), mean, log_std, regression_rows(6), 0, FULL_BATCH, seeded())
    prior = MeanFieldGaussian(torch.zeros_like(mean), torch.full_like(mean, 0.8))
    assert energy.item() == pytest.approx(MeanFieldGaussian(mean, log_std.exp()).kl(prior), rel=1e-12)


def test_both_kinds_of_noise_have_the_same_expected_gradient_for_dense_layers() -> None:
    network = MLP(dimensions=2, hidden=3, classes=3)
    rows = torch.cat([normal(4, 2, seed=4), torch.tensor([[0.0], [1.0], [2.0], [1.0]])], 1)
    local, sampled = local_and_sampled_gradients(network, rows, 150)
    assert relative_error(local) < 0.03
    assert relative_error(sampled) < 0.04
    assert gap(local, sampled) < 4.5


def test_activation_noise_has_less_variance() -> None:
    rows = regression_rows(40)
    local, sampled = local_and_sampled_gradients(Regression(), rows, 100)
    assert float(local.var(0).sum()) < 0.3 * float(sampled.var(0).sum())


def test_both_kinds_of_noise_agree_for_scores_of_single_positions() -> None:
    rows = torch.cat([normal(3, 16, seed=4), torch.zeros(3, 1)], 1)
    local, sampled = local_and_sampled_gradients(Filter(together=False), rows, 150)
    assert relative_error(local) < 0.03
    assert relative_error(sampled) < 0.04
    assert gap(local, sampled) < 4.5


def test_activation_noise_ignores_the_correlation_of_positions() -> None:
    """The bias that the module's docstring warns of."""
    rows = torch.cat([torch.ones(3, 16, dtype=torch.float64), torch.zeros(3, 1)], 1)
    assert gap(*local_and_sampled_gradients(Filter(together=True), rows, 150)) > 10


def test_training_reaches_the_optimum_of_a_linear_model() -> None:
    """Of all independent Gaussians, the nearest to N(m, Λ⁻¹) has the mean m and the variances 1/Λ_jj."""
    network, rows = Regression(), regression_rows(40)
    x = torch.cat([rows[:, :-1], torch.ones(40, 1)], 1)
    precision = x.T @ x + torch.eye(4, dtype=torch.float64) / 0.8**2
    optimum = MeanFieldGaussian(torch.linalg.solve(precision, x.T @ rows[:, -1]), precision.diagonal().rsqrt())
    start = network.initial(seed=0)
    assert start.kl(optimum) > 10
    trained = train_network(network, rows, start, FULL_BATCH, seeded())
    assert trained.posterior.kl(optimum) < 1e-3
    assert float(trained.energies[-100:].mean()) < float(trained.energies[:10].mean())


@pytest.mark.slow
def test_minibatches_reach_the_optimum_too() -> None:
    network, rows = Regression(), regression_rows(40)
    whole = train_network(network, rows, network.initial(seed=0), FULL_BATCH, seeded())
    config = dataclasses.replace(FULL_BATCH, batch_size=16)
    small = train_network(network, rows, network.initial(seed=0), config, seeded())
    assert small.posterior.kl(whole.posterior) < 0.02


@pytest.mark.slow
def test_digits_are_learned() -> None:
    train, test = digits()
    network = MLP(64, 32, 10, prior_std=0.5)
    config = dataclasses.replace(SAFE_BNN, iterations=1_200, decay_every=300, learning_rate=1e-2)
    posterior = train_network(network, train.float(), network.initial(seed=0), config, seeded()).posterior
    assert posterior.mean.dtype == torch.float64
    generator = torch.Generator().manual_seed(1)
    draws = [
        outputs_with_weight_noise(network, posterior.mean, posterior.std, test, generator).softmax(1) for _ in range(20)
    ]
    assert float((torch.stack(draws).mean(0).argmax(1) == test[:, -1]).double().mean()) > 0.93


def test_the_papers_schedule() -> None:
    assert (
        PAPER_BNN.iterations,
        PAPER_BNN.batch_size,
        PAPER_BNN.draws,
        PAPER_BNN.optimiser,
    ) == (10_000, 128, 5, "sgd")
    rates = [PAPER_BNN.rate(iteration) for iteration in (1, 4_000, 4_001, 8_000, 8_001, 10_000)]
    assert rates == pytest.approx([0.5, 0.5, 0.05, 0.05, 0.005, 0.005])


def test_a_step_of_plain_descent_is_the_rate_over_n_times_the_gradient() -> None:
    network, rows, start = (
        Regression(),
        regression_rows(40),
        Regression().initial(seed=0),
    )
    config = BayesByBackprop(1, 40, 0.5, decay=1.0, decay_every=1, draws=1, optimiser="sgd", noise="weights")
    moved = train_network(network, rows, start, config, seeded()).posterior
    generator = seeded()
    torch.randperm(40, generator=generator)
    mean, log_std = (
        start.mean.clone().requires_grad_(),
        start.std.log().requires_grad_(),
    )
    energy = estimate_energy(network, mean, log_std, rows, 40, config, generator)
    energy.backward()
    assert torch.allclose(moved.mean, start.mean - 0.5 / 40 * mean.grad, rtol=1e-12)
    assert torch.allclose(moved.std.log(), start.std.log() - 0.5 / 40 * log_std.grad, rtol=1e-12)


def test_every_step_is_reported_and_the_seed_decides() -> None:
    network, rows, steps = Regression(), regression_rows(40), []
    config = dataclasses.replace(FULL_BATCH, iterations=3)

    def run(seed: int, on_step: object = None) -> MeanFieldGaussian:
        generator = torch.Generator().manual_seed(seed)
        return train_network(network, rows, network.initial(seed=0), config, generator, on_step).posterior

    first = run(0, lambda iteration, energy: steps.append((iteration, energy)))
    assert [iteration for iteration, _ in steps] == [1, 2, 3]
    assert torch.equal(first.mean, run(0).mean)
    assert not torch.equal(first.mean, run(1).mean)


def test_divergence_is_refused_with_advice() -> None:
    network, rows = Regression(), regression_rows(40)
    config = dataclasses.replace(FULL_BATCH, optimiser="sgd", learning_rate=20.0, decay=1.0)
    with pytest.raises(NumericalFailure, match=r"diverged at iteration \d+.*lower the learning rate"):
        train_network(network, rows, network.initial(seed=0), config, seeded())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"iterations": 0}, "iterations is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"draws": 0}, "draws is 0"),
        ({"decay_every": 0}, "decay_every is 0"),
        ({"learning_rate": 0.0}, "learning_rate is 0"),
        ({"decay": 0.0}, "decay is 0"),
        ({"decay": 1.5}, r"decay is 1\.5"),
        ({"optimiser": "lbfgs"}, "lbfgs"),
        ({"noise": "none"}, "none"),
    ],
)
def test_a_wrong_configuration_is_refused(changed: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        dataclasses.replace(FULL_BATCH, **changed)


def test_mismatched_arguments_are_refused() -> None:
    network, rows = Regression(), regression_rows(39)
    with pytest.raises(InvalidInput, match="batch_size is 40 for 39 rows"):
        train_network(network, rows, network.initial(seed=0), FULL_BATCH, seeded())
    with pytest.raises(InvalidInput, match="this network needs 4 parameters"):
        train_network(
            network,
            rows,
            Regression(dimensions=2).initial(seed=0),
            FULL_BATCH,
            seeded(),
        )
    with pytest.raises(InvalidInput, match="columns"):
        train_network(
            MLP(3, 2, 2),
            rows[:, 1:],
            MLP(3, 2, 2).initial(seed=0),
            FULL_BATCH,
            seeded(),
        )
