"""Against the exact minimum of the linearised network, by dense matrices over all retained rows."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from ml.certify.certificate import Certificate
from ml.certify.network.certificate import DEFAULT_RECIPE, CertificationRecipe, certify_network
from ml.certify.network.sample import NetworkSample, split_rows
from ml.errors import InvalidInput
from ml.models.network import Dense, Layer, Network, identity
from ml.models.network_energy import NetworkEnergy, frozen_draws
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.networks import OneLayer, dense_gauss_newton, labelled_rows, learnable_rows, minimised, random_theta

DRAWS, GROUPS = 4, 20
ALL = CertificationRecipe(draws=DRAWS, max_products=60)
SAMPLED = replace(ALL, rows=200, held_out_rows=700)


@dataclass(frozen=True)
class Smooth(Network):
    prior_std: float = 0.5

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (3,)

    @property
    def layers(self) -> tuple[Layer, ...]:
        return (Dense(3, 4, torch.tanh), Dense(4, 3, identity))


@dataclass(frozen=True, eq=False)
class Trained:
    """A posterior at the minimum of its own frozen energy, widths held."""

    network: Network
    data: Tensor
    posterior: MeanFieldGaussian

    @property
    def energy(self) -> NetworkEnergy:
        return NetworkEnergy(self.network, self.data, frozen_draws(self.posterior, DRAWS, seed=0))

    def certificate(
        self, after: MeanFieldGaussian, forgotten: Tensor, recipe: CertificationRecipe = ALL, seed: int = 0
    ) -> Certificate:
        return certify_network(self.network, self.posterior, after, self.data, forgotten, seeded(seed), recipe)

    def moved(self, drift: Tensor) -> MeanFieldGaussian:
        return MeanFieldGaussian(self.posterior.mean + drift, self.posterior.std)

    def retained(self, forgotten: Tensor) -> Tensor:
        keep = torch.ones(len(self.data), dtype=torch.bool)
        keep[forgotten] = False
        return torch.nonzero(keep).flatten()

    def pull(self, forgotten: Tensor) -> Tensor:
        return self.energy.misfit_gradient(torch.zeros_like(self.posterior.mean), forgotten)

    def curvature(self, forgotten: Tensor) -> Tensor:
        sample = NetworkSample(self.energy, self.retained(forgotten), len(self.data) - len(forgotten))
        return torch.stack([sample.product(unit) for unit in torch.eye(self.network.parameter_count).double()])


def trained(network: Network, n: int) -> Trained:
    data = learnable_rows(network, n)
    start = MeanFieldGaussian(network.initial(seed=4).mean, torch.full((network.parameter_count,), 0.05).double())
    drift = minimised(NetworkEnergy(network, data, frozen_draws(start, DRAWS, seed=0)), torch.arange(n))
    return Trained(network, data, MeanFieldGaussian(start.mean + drift, start.std))


@pytest.fixture(scope="module")
def smooth() -> Trained:
    return trained(Smooth(), 1_000)


@dataclass(frozen=True, eq=False)
class Case:
    """A group to forget, g, and A over all that is retained."""

    forgotten: Tensor
    pull: Tensor
    curvature: Tensor

    @property
    def step(self) -> Tensor:
        return torch.linalg.solve(self.curvature, self.pull)

    def excess(self, drift: Tensor) -> float:
        residual = self.curvature @ drift - self.pull
        return 0.5 * float(residual.dot(torch.linalg.solve(self.curvature, residual)))

    def gradient(self, drift: Tensor, scene: Trained) -> float:
        return float((scene.posterior.std * (self.curvature @ drift - self.pull)).norm())


@pytest.fixture(scope="module")
def cases(smooth: Trained) -> list[Case]:
    return [Case(group, smooth.pull(group), smooth.curvature(group)) for group in groups(1_000)]


@pytest.fixture(scope="module")
def one_layer() -> Trained:
    return trained(OneLayer(), 200)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def groups(n: int) -> list[Tensor]:
    """Of one to eight rows; some are too far from linear to get an interval."""
    return [torch.randperm(n, generator=seeded(seed))[: 1 + seed % 8] for seed in range(GROUPS)]


def failed(certificate: Certificate) -> list[str]:
    return [assumption.name for assumption in certificate.assumptions if not assumption.holds]


@pytest.mark.parametrize("network", [Smooth(), OneLayer()])
def test_a_product_is_that_with_the_dense_matrix(network: Network) -> None:
    data, posterior = labelled_rows(network, 30), MeanFieldGaussian(random_theta(network), random_theta(network) ** 2)
    energy, rows = NetworkEnergy(network, data, frozen_draws(posterior, DRAWS, seed=0)), torch.tensor([2, 3, 7, 11, 18])
    dense = sum(dense_gauss_newton(network, energy.draws[row % DRAWS], data[row : row + 1]) for row in rows.tolist())
    vector = random_theta(network, 5)
    expected = 6 * dense @ vector + vector / network.prior_std**2
    sample = NetworkSample(energy, rows, 30)
    assert torch.allclose(sample.product(vector), expected, rtol=1e-10, atol=0)
    tangent = sample.tangent(vector)
    assert sample.bilinear_form(vector, vector, tangent.curvature(tangent)) == pytest.approx(
        float(vector.dot(expected)), rel=1e-10
    )
    slope = 6 * float(energy.misfit_gradient(torch.zeros_like(vector), rows).dot(vector))
    assert 30 * float(tangent.slope.mean()) == pytest.approx(slope, rel=1e-10)
    assert 30 * float(sample.misfits(vector).mean()) == pytest.approx(6 * energy.misfit(vector, rows), rel=1e-10)


def test_the_standard_error_is_the_spread_over_samples() -> None:
    values = torch.randn(300, generator=seeded(), dtype=torch.float64).exp()
    energy = NetworkEnergy(OneLayer(), labelled_rows(OneLayer(), 300), random_theta(OneLayer()).unsqueeze(0))
    sums, errors = [], []
    for seed in range(300):
        rows = torch.randperm(300, generator=seeded(seed))[:100]
        sums.append(300 * float(values[rows].mean()))
        errors.append(NetworkSample(energy, rows, 300).standard_error(values[rows]))
    assert statistics.mean(errors) == pytest.approx(statistics.stdev(sums), rel=0.15)
    assert NetworkSample(energy, torch.arange(300), 300).standard_error(values) == 0


def test_with_all_rows_the_excess_and_the_gradient_are_exact(smooth: Trained, cases: list[Case]) -> None:
    issued = 0
    for case in cases:
        certificate, truth = smooth.certificate(smooth.moved(case.step / 2), case.forgotten), case.excess(case.step / 2)
        assert certificate.constants.excess == pytest.approx(truth, rel=1e-4)
        assert certificate.constants.gradient == pytest.approx(case.gradient(case.step / 2, smooth), rel=1e-6)
        assert certificate.constants.gradient_margin == 0
        if certificate.interval is not None:
            issued += 1
            assert certificate.interval[0] <= truth * (1 + 1e-4)
            assert truth <= certificate.interval[1] == certificate.epsilon < 4 * truth + certificate.constants.widths
    assert issued >= 15


def test_a_sample_overestimates_and_its_interval_holds_the_truth(smooth: Trained, cases: list[Case]) -> None:
    """After a fifth of what is to be done."""
    ratios, issued = [], 0
    for seed, case in enumerate(cases):
        certificate = smooth.certificate(smooth.moved(case.step / 5), case.forgotten, SAMPLED, seed)
        truth = case.excess(case.step / 5)
        assert certificate.constants.rows == 200
        ratios.append(certificate.constants.excess / truth)
        if certificate.interval is not None:
            issued += 1
            assert certificate.interval[0] <= truth
            assert certificate.interval[1] - certificate.constants.widths >= truth
    assert issued >= 12
    assert 1.1 < statistics.mean(ratios) < 2


def test_the_gradient_of_a_sample_lies_within_its_margin(smooth: Trained, cases: list[Case]) -> None:
    off = []
    for seed, case in enumerate(cases):
        drift = -3 * case.step
        truth = case.gradient(drift, smooth)
        sampled = smooth.certificate(smooth.moved(drift), case.forgotten, SAMPLED, seed).constants
        assert 0 < sampled.gradient_margin < 0.5 * truth
        off.append(abs(sampled.gradient - truth) / sampled.gradient_margin)
    assert statistics.mean(gap <= 1 for gap in off) >= 0.9


def test_both_directions_are_those_to_the_minimum(smooth: Trained, cases: list[Case]) -> None:
    """Widths that nothing was given to are known: then both divergences are ½‖x/σ‖² and what the widths add."""
    case = cases[5]
    constants = smooth.certificate(smooth.posterior, case.forgotten).constants
    mean_part = 0.5 * float((case.step / smooth.posterior.std).square().sum())
    assert constants.divergence == pytest.approx(mean_part + constants.widths, rel=1e-4)
    assert constants.divergence_reverse == pytest.approx(mean_part + constants.widths, rel=0.1)
    assert constants.divergence_reverse != constants.divergence
    assert constants.paper_epsilon > constants.divergence


def test_the_excess_of_a_network_with_one_layer_is_that_of_its_own_energy(one_layer: Trained) -> None:
    """Its logits are linear: what is left is the third derivative of softmax."""
    for forgotten in groups(200):
        truth = minimised_tilted(one_layer, forgotten)
        nothing = one_layer.certificate(one_layer.posterior, forgotten)
        assert nothing.epsilon - nothing.constants.widths == pytest.approx(truth, rel=0.05)


def minimised_tilted(scene: Trained, forgotten: Tensor) -> float:
    """F̃(0) - min F̃ of the network itself, by Newton's method with the network's own gradient."""
    energy, rows, pull = scene.energy, scene.retained(forgotten), scene.pull(forgotten)
    origin, drift = torch.zeros_like(pull), torch.zeros_like(pull)
    slope = energy.misfit_gradient(origin, rows) + energy.prior_gradient(origin) + pull
    curvature = scene.curvature(forgotten)
    for _ in range(12):
        gradient = energy.misfit_gradient(drift, rows) + energy.prior_gradient(drift) - slope
        drift = drift - torch.linalg.solve(curvature, gradient)
    assert float(gradient.norm()) < 1e-8
    start, end = (energy.misfit(at, rows) + energy.prior_energy(at) - float(slope.dot(at)) for at in (origin, drift))
    return start - end


@pytest.mark.parametrize("recipe", [ALL, SAMPLED], ids=["all", "sampled"])
def test_sabotage_shows(smooth: Trained, cases: list[Case], recipe: CertificationRecipe) -> None:
    case = cases[3]
    of_half = torch.linalg.solve(case.curvature, smooth.pull(case.forgotten[:2]))
    honest, nothing, wrong, half = (
        smooth.certificate(smooth.moved(drift), case.forgotten, recipe).epsilon
        for drift in (case.step, 0 * case.step, -case.step, of_half)
    )
    assert nothing > 1.5 * honest
    assert wrong > 1.5 * nothing
    assert half > 1.5 * honest


def test_widths_left_as_they_were_or_changed_the_wrong_way_cost(smooth: Trained) -> None:
    forgotten = torch.arange(40)
    given = smooth.energy.fisher_diagonal(forgotten, seeded(9))
    precision = smooth.posterior.std**-2

    def widths(change: float) -> float:
        after = MeanFieldGaussian(smooth.posterior.mean, (precision + change * given).rsqrt())
        return float(smooth.certificate(after, forgotten).constants.widths)

    assert 0 < widths(-1.0) < widths(0.0) < widths(1.0)


def test_a_solve_cut_short_certifies_nothing(smooth: Trained) -> None:
    certificate = smooth.certificate(smooth.posterior, torch.arange(8), replace(ALL, max_products=4, max_unsolved=0.01))
    assert (certificate.level, certificate.epsilon, certificate.interval) == ("none", math.inf, None)
    assert failed(certificate) == ["solved"]
    assert "not shown: the solver" in certificate.reasons[0]


def test_a_network_that_is_not_linear_enough_certifies_nothing(smooth: Trained, cases: list[Case]) -> None:
    strict = replace(ALL, max_nonlinear=0.05)
    certificate = smooth.certificate(smooth.moved(cases[4].step), cases[4].forgotten, strict)
    assert (certificate.level, certificate.epsilon) == ("none", math.inf)
    assert failed(certificate) == ["linearised"]
    assert certificate.assumptions[1].value > 0.05


def test_the_generator_decides_and_nothing_is_proved(smooth: Trained) -> None:
    first, again, other = (
        smooth.certificate(smooth.posterior, torch.arange(5), SAMPLED, seed).epsilon for seed in (0, 0, 1)
    )
    assert first == again != other
    certificate = smooth.certificate(smooth.posterior, torch.arange(5))
    assert certificate.level == "estimated"
    assert math.isnan(certificate.epsilon_reverse)
    assert any("linearised" in sentence for sentence in certificate.not_proved)
    assert certificate.n_retained == 995


def test_rows_are_split_without_overlap_or_all_used() -> None:
    one, other = split_rows(torch.arange(100, 200), 30, 60, seeded())
    assert (len(one), len(other), len(set(one.tolist() + other.tolist()))) == (30, 60, 90)
    assert all(torch.equal(rows, torch.arange(50)) for rows in split_rows(torch.arange(50), 30, 60, seeded()))


def test_what_does_not_fit_is_refused(smooth: Trained) -> None:
    short = MeanFieldGaussian(smooth.posterior.mean[1:], smooth.posterior.std[1:])
    with pytest.raises(InvalidInput, match="this network has 31 parameters"):
        smooth.certificate(short, torch.arange(3))
    with pytest.raises(InvalidInput, match="named twice"):
        smooth.certificate(smooth.posterior, torch.tensor([1, 1]))
    with pytest.raises(InvalidInput, match="between 0 and 1"):
        replace(DEFAULT_RECIPE, max_nonlinear=1.0)
    with pytest.raises(InvalidInput, match="max_products"):
        replace(DEFAULT_RECIPE, max_products=1)
