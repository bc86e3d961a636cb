from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from ml.errors import InvalidInput, NumericalFailure
from ml.inference import chains
from ml.inference.chains import (
    PAPER_BNN_SGHMC,
    PAPER_BNN_SGLD,
    PAPER_GMM_SGHMC,
    PAPER_GMM_SGLD,
    SAFE_HMC,
    SAFE_SGHMC,
    SAFE_SGLD,
    Chains,
    sample,
)
from ml.inference.hmc import HMC
from ml.inference.laplace import Laplace, fit_laplace
from ml.inference.sghmc import SGHMC
from ml.inference.sgld import SGLD, StepSize
from ml.models.gmm import GaussianMixture
from ml.models.potential import Potential
from ml.models.synthetic import synthetic_mixture
from tests.ml.conftest import Scene


def seed(value: int) -> torch.Generator:
    return torch.Generator().manual_seed(value)


@dataclass(frozen=True)
class Gaussian:
    """Rows of mean Bθ and unit noise, θ ~ N(0, σ²): its posterior is known, and stiff where B has long columns."""

    directions: Tensor
    prior_std: float = 0.5

    @property
    def parameter_count(self) -> int:
        return self.directions.shape[1]

    def check_data(self, data: Tensor) -> None:
        if data.shape[1:] != self.directions.shape[:1]:
            raise InvalidInput("rows of other columns")

    def log_likelihood(self, theta: Tensor, data: Tensor) -> Tensor:
        return -0.5 * (data - self.directions @ theta).square().sum(1)

    def log_prior(self, theta: Tensor) -> Tensor:
        return -0.5 * (theta / self.prior_std).square().sum()

    def posterior(self, data: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and covariance."""
        b = self.directions
        precision = len(data) * b.T @ b + torch.eye(self.parameter_count, dtype=b.dtype) / self.prior_std**2
        covariance = torch.linalg.inv(precision)
        return covariance @ (b.T @ data.sum(0)), covariance


ROWS = synthetic_mixture(60, seed=3)[0]
PLAIN = Gaussian(torch.eye(2, dtype=torch.float64))
STIFF = Gaussian(torch.tensor([[10.0, 1.0], [0.0, 0.05]], dtype=torch.float64))
START = torch.tensor([0.1, -0.2], dtype=torch.float64)
SHORT = Chains(SGLD(StepSize(0.5, 0.0)), iterations=20, burn_in=5, thinning=3, batch_size=7, count=3)


@pytest.mark.parametrize("config", [SAFE_HMC, SAFE_SGLD, SAFE_SGHMC], ids=["hmc", "sgld", "sghmc"])
def test_the_safe_defaults_draw_from_a_stiff_posterior_in_closed_form(config: Chains) -> None:
    """Mean and covariance within four Monte-Carlo standard errors, in coordinates where the posterior is N(0, I)."""
    mean, covariance = STIFF.posterior(ROWS)
    assert float(torch.linalg.cond(covariance)) > 1000
    sampled = sample(STIFF, ROWS, START, config, seed(0))
    assert sampled.diagnostics.warning is None
    draws = sampled.sample_set.samples
    assert draws.shape == (2000, 2)
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), (draws - mean).T, upper=False)
    error = 4 / math.sqrt(sampled.diagnostics.ess)
    assert error < 0.12
    assert float(white.mean(1).abs().max()) < error
    assert float((torch.cov(white) - torch.eye(2, dtype=torch.float64)).abs().max()) < math.sqrt(2) * error


def test_one_component_is_conjugate() -> None:
    """N(Σx/(n + 1/σ²), 1/(n + 1/σ²))."""
    family, data = GaussianMixture(1, 2, 0.7), ROWS
    precision = len(data) + 0.7**-2
    sampled = sample(family, data, data[0], SAFE_HMC, seed(1))
    assert sampled.diagnostics.ok
    gap = (sampled.sample_set.mean - data.sum(0) / precision) * math.sqrt(precision)
    error = 4 / math.sqrt(sampled.diagnostics.ess)
    assert float(gap.abs().max()) < error
    assert float((sampled.sample_set.covariance.diagonal() * precision - 1).abs().max()) < math.sqrt(2) * error


def test_the_share_of_accepted_iterations_is_reported() -> None:
    """A Gaussian refuses nothing."""
    config = dataclasses.replace(SHORT, algorithm=HMC(2, 0), batch_size=None, preconditioned=True)
    assert sample(STIFF, ROWS, START, config, seed(0)).acceptance == 1.0
    static = dataclasses.replace(SHORT, algorithm=SGLD(StepSize(1e-300, 0.0)))
    assert sample(PLAIN, ROWS, START, static, seed(0)).acceptance == 0.0


def test_the_mixture_that_is_sampled_is_the_one_of_the_paper() -> None:
    family, theta = GaussianMixture(3, 2, 0.7), torch.linspace(-2, 3, 6, dtype=torch.float64)
    components = Independent(Normal(theta.reshape(3, 2), 1.0), 1)
    mixture = MixtureSameFamily(Categorical(torch.ones(3, dtype=torch.float64)), components)
    assert family.parameter_count == 6
    assert torch.allclose(family.log_likelihood(theta, ROWS), mixture.log_prob(ROWS), rtol=1e-13, atol=0)
    prior = Normal(torch.zeros_like(theta), 0.7 * torch.ones_like(theta))
    assert float(family.log_prior(theta)) == pytest.approx(float(prior.log_prob(theta).sum()), rel=1e-13)


@pytest.fixture(scope="module")
def laplace(scene: Scene) -> Laplace:
    return fit_laplace(Potential(scene.family, scene.data), scene.posterior.mean.flatten())


def std_ratio(samples: Tensor, laplace: Laplace) -> Tensor:
    """Return standard deviations relative to Laplace, which is accurate to 1 % for 500 rows per component."""
    narrow: Tensor = torch.linalg.inv(laplace.hessian).diagonal().sqrt()
    return samples.std(0) / narrow


@pytest.mark.parametrize("config", [PAPER_GMM_SGLD, PAPER_GMM_SGHMC], ids=["sgld", "sghmc"])
def test_the_papers_steps_leave_the_mixture_too_wide_and_the_diagnostics_say_so(
    scene: Scene, laplace: Laplace, config: Chains
) -> None:
    sampled = sample(scene.family, scene.data, laplace.mode, config, seed(0))
    ratio = std_ratio(sampled.sample_set.samples, laplace)
    assert float(ratio.min()) > 1.5
    assert float(ratio.max()) < 8
    assert sampled.diagnostics.width == pytest.approx(float(ratio.square().mean().sqrt()), rel=0.1)
    assert sampled.diagnostics.warning is not None
    assert "times as wide as the posterior: lower the step size" in sampled.diagnostics.warning


@pytest.mark.slow
@pytest.mark.parametrize("config", [SAFE_HMC, SAFE_SGLD, SAFE_SGHMC], ids=["hmc", "sgld", "sghmc"])
def test_the_safe_defaults_fit_the_papers_mixture(scene: Scene, laplace: Laplace, config: Chains) -> None:
    sampled = sample(scene.family, scene.data, scene.posterior.mean.flatten(), config, seed(0))
    assert sampled.diagnostics.warning is None
    draws = sampled.sample_set
    assert float((std_ratio(draws.samples, laplace) - 1).abs().max()) < 0.08
    nearest = torch.cdist(draws.samples.reshape(-1, 2), laplace.mode.reshape(4, 2)).argmin(1).reshape(-1, 4)
    assert bool((nearest == torch.arange(4)).all())  # one labelling throughout


def test_the_settings_of_the_paper() -> None:
    for config, scale, power in (
        (PAPER_GMM_SGLD, 4.0, 0.15),
        (PAPER_GMM_SGHMC, 2.0, 0.15),
        (PAPER_BNN_SGLD, 0.5, 0.5),
        (PAPER_BNN_SGHMC, 0.5, 0.5),
    ):
        assert config.algorithm.step_size == StepSize(scale, power)
        assert not config.preconditioned
        if isinstance(config.algorithm, SGHMC):
            assert config.algorithm.friction == 0.4
    for config in (PAPER_GMM_SGLD, PAPER_GMM_SGHMC):
        assert (config.iterations, config.batch_size, config.draws_per_chain, config.thinning) == (2000, 64, 500, 1)
    for config in (PAPER_BNN_SGLD, PAPER_BNN_SGHMC):
        assert (config.iterations, config.batch_size) == (10_000, 128)


def test_minibatches_thinning_and_burn_in_agree_with_an_explicit_loop() -> None:
    """Three chains, each on its own seven rows, ∇Ũ = θ/σ² + (n/7) Σ(θ - x); steps 8, 11, 14, 17, 20 are kept."""
    sampled = sample(PLAIN, ROWS, START, SHORT, seed(5)).sample_set
    generator, epsilon = seed(5), 0.5 / 60
    theta = START + 2 / math.sqrt(60) * torch.randn(3, 2, generator=generator, dtype=torch.float64)
    iterates = []
    for _ in range(20):
        rows = ROWS[torch.rand(3, 60, generator=generator).topk(7).indices]
        gradient = theta / 0.5**2 + 60 / 7 * (theta.unsqueeze(1) - rows).sum(1)
        noise = math.sqrt(2 * epsilon) * torch.randn(3, 2, generator=generator, dtype=torch.float64)
        theta = theta - epsilon * gradient + noise
        iterates.append(theta)
    expected = torch.stack([iterates[t - 1] for t in (8, 11, 14, 17, 20)], 1)  # (chains, kept, p)
    assert torch.allclose(sampled.samples.reshape(3, 5, 2), expected, rtol=0, atol=1e-13)
    assert sampled.chain.tolist() == [0] * 5 + [1] * 5 + [2] * 5


def test_a_batch_repeats_no_row_and_batches_cover_all_rows() -> None:
    drawn = chains._batches(50, 7, 20, seed(0))
    assert all(len(set(batch)) == 7 for batch in drawn.tolist())
    assert set(drawn.flatten().tolist()) == set(range(20))
    assert drawn[0].tolist() != drawn[1].tolist()


def test_every_batch_is_equally_likely() -> None:
    """Each of the 10 pairs of 5 rows has probability 1/10: 2,000 ± 42 of 20,000 draws."""
    drawn = chains._batches(20_000, 2, 5, seed(0)).sort(1).values
    counts = torch.bincount(5 * drawn[:, 0] + drawn[:, 1])
    assert int((counts > 0).sum()) == 10
    assert float((counts[counts > 0] - 2_000).abs().max()) < 4 * math.sqrt(20_000 * 0.1 * 0.9)


@pytest.mark.parametrize(
    ("config", "rows", "expected"),
    [
        (SAFE_HMC, 2_000, (500, 2_000)),
        (SAFE_SGLD, 60_000, (500, 60_000)),
        (dataclasses.replace(SAFE_SGLD, iterations=8_200), 2_000, (500, 2_000)),
        (PAPER_BNN_SGLD, 60_000, (50, 1_704)),
        (PAPER_GMM_SGLD, 2_000, (133, 64)),
        (dataclasses.replace(SHORT, iterations=30), 60, (2, 7)),
        (dataclasses.replace(SHORT, iterations=9, burn_in=1, thinning=2), 60, (1, 7)),
    ],
)
def test_minibatches_are_checked_on_a_fifteenth_of_the_rows_that_sampling_reads(
    config: Chains, rows: int, expected: tuple[int, int]
) -> None:
    assert chains._checked_sizes(config, rows) == expected


@pytest.mark.parametrize("algorithm", [SGLD(StepSize(0.5, 0.1)), SGHMC(StepSize(0.2, 0.1), 0.6)])
def test_the_seed_decides(algorithm: SGLD | SGHMC) -> None:
    config = dataclasses.replace(SHORT, algorithm=algorithm)
    first, repeated, other = (sample(PLAIN, ROWS, START, config, seed(value)) for value in (1, 1, 2))
    assert torch.equal(first.sample_set.samples, repeated.sample_set.samples)
    assert first.diagnostics == repeated.diagnostics
    assert not torch.equal(first.sample_set.samples, other.sample_set.samples)


def test_without_jitter_all_chains_start_at_the_same_point() -> None:
    """Tiny steps leave the chains at their starts; `jitter` spreads these, in units of n^(-1/2)."""
    static = dataclasses.replace(SHORT, algorithm=SGLD(StepSize(1e-16, 0.0)), jitter=0.0, count=200)
    assert torch.allclose(sample(PLAIN, ROWS, START, static, seed(0)).sample_set.mean, START, rtol=0, atol=1e-6)
    spread = dataclasses.replace(static, jitter=3.0)
    drawn = sample(PLAIN, ROWS, START, spread, seed(0)).sample_set
    assert float(drawn.samples.std()) == pytest.approx(3 / math.sqrt(60), rel=0.2)


def test_preconditioned_chains_are_centred_at_the_mode() -> None:
    mean, covariance = STIFF.posterior(ROWS)
    static = dataclasses.replace(SAFE_SGLD, algorithm=SGLD(StepSize(1e-16, 0.0)), iterations=220, count=200)
    drawn = sample(STIFF, ROWS, START, dataclasses.replace(static, jitter=0.0), seed(0)).sample_set
    assert torch.allclose(drawn.mean, mean, rtol=0, atol=1e-6)
    jittered = sample(STIFF, ROWS, START, static, seed(0)).sample_set
    spread = jittered.samples.std(0) / covariance.diagonal().sqrt()
    assert torch.allclose(spread, torch.full_like(spread, 2.0), rtol=0.2)


def test_chains_on_minibatches_are_checked_by_minibatches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of ελ = 0.01 on batches of 30 of 60 rows, whose noise is small beside that of the chain."""
    monkeypatch.setattr(chains, "_CHECKED_ROWS", 20)
    slow = Chains(SGLD(StepSize(0.02, 0.0)), iterations=3_000, burn_in=500, thinning=5, batch_size=30)
    sampled = sample(PLAIN, ROWS, START, slow, seed(0))
    assert chains._checked_sizes(slow, 60) == (200, 20)
    assert sampled.diagnostics.width == pytest.approx(1.0, abs=0.15)


def test_every_iteration_is_reported() -> None:
    steps: list[tuple[int, float]] = []
    config = dataclasses.replace(SHORT, algorithm=SGLD(StepSize(0.5, 0.5)))
    sample(PLAIN, ROWS, START, config, seed(0), on_step=lambda *step: steps.append(step))
    assert [iteration for iteration, _ in steps] == list(range(1, 21))
    assert steps[3][1] == 0.25 / 60


def test_an_exploding_chain_is_a_numerical_failure() -> None:
    config = dataclasses.replace(SHORT, algorithm=SGLD(StepSize(50.0, 0.0)), iterations=2_000)
    with pytest.raises(
        NumericalFailure, match=r"exploded at iteration \d+: shorten the steps of SGLD\(step_size=StepSize\(scale=50.0"
    ):
        sample(PLAIN, ROWS, START, config, seed(0))


def test_a_likelihood_that_is_not_a_number_is_a_numerical_failure() -> None:
    class Broken(Gaussian):
        def log_prior(self, theta: Tensor) -> Tensor:
            return (theta - 10).sum().sqrt()

    with pytest.raises(NumericalFailure, match="iteration 1: shorten"):
        sample(Broken(PLAIN.directions), ROWS, START, SHORT, seed(0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 1}, "count is 1"),
        ({"thinning": 0}, "thinning is 0"),
        ({"burn_in": -1}, "burn_in is -1"),
        ({"burn_in": 10}, "3 draws of each chain"),
        ({"burn_in": 30}, "raise iterations"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"jitter": -1.0}, "jitter"),
        ({"jitter": math.nan}, "jitter"),
        ({"preconditioned": True, "algorithm": SGLD(StepSize(2.0, 0.0))}, "unstable"),
        ({"preconditioned": True, "algorithm": SGHMC(StepSize(0.4, 0.0), 0.4)}, "below the friction"),
        ({"preconditioned": True, "algorithm": HMC(4, 5)}, "HMC needs preconditioned chains on every row"),
        ({"batch_size": None, "algorithm": HMC(4, 5)}, "HMC needs preconditioned chains on every row"),
        ({"batch_size": None, "preconditioned": True, "algorithm": HMC(4, 6)}, "tuning lasts 6 iterations, burn_in 5"),
    ],
)
def test_an_invalid_configuration_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        dataclasses.replace(SHORT, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "start", "config", "message"),
    [
        (ROWS[:, :1], START, SHORT, "other columns"),
        (ROWS, START[:1], SHORT, "one θ of length 2"),
        (ROWS, START.reshape(1, 2), SHORT, "one θ of length 2"),
        (ROWS, START.float(), SHORT, "float64"),
        (ROWS, START * math.nan, SHORT, "finite"),
        (ROWS[:6], START, SHORT, "batch_size 7 exceeds the 6 rows"),
    ],
)
def test_invalid_input_is_refused(data: Tensor, start: Tensor, config: Chains, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        sample(PLAIN, data, start, config, seed(0))


def test_the_arguments_are_not_changed() -> None:
    data, start = ROWS.clone(), START.clone()
    sampled = sample(PLAIN, data, start, dataclasses.replace(SHORT, preconditioned=True), seed(0))
    assert torch.equal(data, ROWS)
    assert torch.equal(start, START)
    assert not start.requires_grad
    assert not sampled.sample_set.samples.requires_grad
