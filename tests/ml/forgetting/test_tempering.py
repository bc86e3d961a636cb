"""Linear regression, whose posteriors are known; a perceptron for moves by minibatches."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ml.certify.importance import relative_ess, weigh_unmoved
from ml.certify.sample_readiness import diagnose_samples
from ml.errors import InvalidInput, NumericalFailure
from ml.forgetting.tempering import TemperConfig, expected_row_passes, move_draws, temper
from ml.inference.chains import SAFE_BNN_SGLD, SAFE_HMC
from ml.inference.hmc import HMC
from ml.inference.sgld import SGLD, StepSize
from ml.models.linear import LinearRegression
from ml.models.logistic import LogisticRegression
from ml.models.mlp import MLP
from ml.posteriors.sample_set import SampleSet
from tests.ml.exact_posterior import exact_posterior

FAMILY = LinearRegression(dimensions=3, noise_std=1.0, prior_std=1.0)
CHAINS, DRAWS = 4, 400


@pytest.fixture(scope="module")
def rows() -> Tensor:
    """Return 200 rows; the first 60 follow another slope, so that forgetting them moves the posterior far."""
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    slope = torch.where(torch.arange(200).unsqueeze(1) < 60, 1.5, 0.5) * torch.ones(3, dtype=torch.float64)
    noise = torch.randn(200, generator=generator, dtype=torch.float64)
    return torch.cat([features, ((features * slope).sum(1) + noise).unsqueeze(1)], 1)


def draws(data: Tensor, seed: int = 5) -> SampleSet:
    mean, covariance = exact_posterior(FAMILY, data)
    noise = torch.randn(CHAINS * DRAWS, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    samples = mean + noise @ torch.linalg.cholesky(covariance).T
    return SampleSet(samples, torch.arange(CHAINS).repeat_interleave(DRAWS))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def test_a_group_beyond_weights_is_removed_in_stages(rows: Tensor) -> None:
    before, forgotten = draws(rows), torch.arange(60)
    assert relative_ess(weigh_unmoved(FAMILY, before, rows[:60]).log_weights) < 0.01
    stages: list[float] = []
    after = temper(FAMILY, before, rows, forgotten, generator(), on_stage=lambda _, removed: stages.append(removed))
    mean, covariance = exact_posterior(FAMILY, rows[60:])
    whiten = torch.linalg.inv(torch.linalg.cholesky(covariance))
    error = 1 / math.sqrt(CHAINS * DRAWS)
    assert float((whiten @ (after.sample_set.mean - mean)).abs().max()) < 4 * error
    spread = whiten @ after.sample_set.covariance @ whiten.T
    assert float((spread - torch.eye(3)).abs().max()) < 4 * math.sqrt(2) * error
    assert not bool(after.sample_set.log_weights.any())
    assert diagnose_samples(FAMILY, after.sample_set, rows[60:]).ok
    assert not diagnose_samples(FAMILY, before, rows[60:]).ok
    assert after.stages == len(after.ess_path) == len(stages) > 2
    assert stages == sorted(stages)
    assert stages[-1] == 1
    assert min(after.ess_path) == pytest.approx(0.5, abs=1e-3)
    assert after.ancestors < CHAINS * DRAWS / 2


def test_the_cost_is_foreseen(rows: Tensor) -> None:
    before, forgotten = draws(rows), torch.arange(60)
    after = temper(FAMILY, before, rows, forgotten, generator())
    assert after.acceptance > 0.9  # HMC is exact on a Gaussian whose moments are known, so no step is repeated
    assert 0.5 < expected_row_passes(FAMILY, before, rows, forgotten) / after.row_passes <= 1
    per_stage = CHAINS * DRAWS * ((1 + 3) * 200 + 60)
    assert after.row_passes == after.stages * per_stage


def test_a_group_that_weights_carry_takes_one_stage(rows: Tensor) -> None:
    before, forgotten = draws(rows), torch.tensor([100])
    after = temper(FAMILY, before, rows, forgotten, generator())
    assert after.stages == 1
    weighted = weigh_unmoved(FAMILY, before, rows[100:101])
    assert after.ess_path[0] == pytest.approx(relative_ess(weighted.log_weights), abs=0.05)
    assert after.row_passes == expected_row_passes(FAMILY, before, rows, forgotten)
    assert after.copies == 0  # all were moved


def test_weights_of_earlier_deletions_count(rows: Tensor) -> None:
    """Draws of all rows, weighted for the first 10; then the other 50 are removed."""
    weighted = weigh_unmoved(FAMILY, draws(rows), rows[:10])
    after = temper(FAMILY, weighted, rows[10:], torch.arange(50), generator())
    mean, covariance = exact_posterior(FAMILY, rows[60:])
    gap = torch.linalg.solve(torch.linalg.cholesky(covariance), after.sample_set.mean - mean)
    assert float(gap.abs().max()) < 4 / math.sqrt(CHAINS * DRAWS)


def test_chains_stay_apart(rows: Tensor) -> None:
    """A chain far from the posterior stays so where no move is accepted: its draws never mix with the others'."""
    before = draws(rows)
    far = before.samples + 100.0 * (before.chain == 2).unsqueeze(1)
    after = temper(FAMILY, SampleSet(far, before.chain), rows, torch.tensor([100]), generator()).sample_set
    assert torch.equal(after.chain, before.chain)
    off = (after.samples - exact_posterior(FAMILY, rows)[0]).norm(dim=1)
    assert float(off[after.chain != 2].max()) < 2


def test_moves_are_adjusted_where_the_posterior_is_no_gaussian() -> None:
    """Eight rows of a logistic regression, skewed: moments against quadrature on a grid."""
    family = LogisticRegression(dimensions=1, prior_std=3.0)
    features = torch.tensor([1.0, 2.0, 0.5, 1.5, 1.0, 2.5, 0.3, 2.0]).double()
    labels = torch.tensor([1.0, 1, 1, 1, 0, 1, 0, 1]).double()
    data = torch.stack([features, labels], 1)
    grid = torch.linspace(-15, 25, 1001, dtype=torch.float64)

    def density(part: Tensor) -> Tensor:
        thetas = grid.unsqueeze(1)
        return torch.stack([family.log_likelihood(at, part).sum() + family.log_prior(at) for at in thetas]).softmax(0)

    before, after = density(data), density(data[2:])
    start = torch.multinomial(before, 4000, replacement=True, generator=torch.Generator().manual_seed(2))
    jitter = 0.04 * (torch.rand(4000, generator=torch.Generator().manual_seed(3), dtype=torch.float64) - 0.5)
    sample_set = SampleSet((grid[start] + jitter).unsqueeze(1), torch.arange(4).repeat_interleave(1000))
    tempered = temper(family, sample_set, data, torch.arange(2), generator()).sample_set.samples.squeeze(1)
    mean = float(after @ grid)
    variance = float(after @ (grid - mean).square())
    assert float(tempered.mean()) == pytest.approx(mean, abs=4 * math.sqrt(variance / 2000))
    assert float(tempered.var()) == pytest.approx(variance, rel=0.2)


def test_minibatches_lead_to_the_retained_mean_not_to_its_width(rows: Tensor) -> None:
    before = draws(rows)
    config = TemperConfig(SGLD(StepSize(0.1, 0.0)), moves=30, batch_size=8)
    after = temper(FAMILY, before, rows, torch.arange(60), generator(), config)
    assert not after.exact
    assert after.row_passes == after.stages * CHAINS * DRAWS * (8 * 30 + 60)
    mean, covariance = exact_posterior(FAMILY, rows[60:])
    whiten = torch.linalg.inv(torch.linalg.cholesky(covariance))
    assert float((whiten @ (before.mean - mean)).norm()) > 2
    assert float((whiten @ (after.sample_set.mean - mean)).norm()) < 0.2
    assert float((whiten @ after.sample_set.covariance @ whiten.T).diagonal().min()) > 1.2


def test_minibatches_move_the_draws_of_a_network_in_the_precision_of_its_rows() -> None:
    network = MLP(dimensions=2, hidden=3, classes=2, prior_std=1.0)
    features = torch.randn(80, 2, generator=torch.Generator().manual_seed(0))
    data = torch.cat([features, (features[:, :1] > 0).float()], 1)
    data[:20, -1] = 1 - data[:20, -1]
    noise = torch.randn(8, network.parameter_count, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    before = SampleSet(network.initial(0).mean + 0.1 * noise, torch.arange(2).repeat_interleave(4))
    config = TemperConfig(SGLD(StepSize(0.5, 0.0)), moves=300, batch_size=16)
    after = temper(network, before, data, torch.arange(20), generator(), config).sample_set.samples
    mistaken = torch.stack([network.log_likelihood(draw, data[:20]) for draw in after])
    assert float(mistaken.exp().mean()) < 0.3


def test_moves_with_nothing_removed_leave_the_posterior(rows: Tensor) -> None:
    before = draws(rows)
    after = move_draws(FAMILY, before, rows, generator(), stages=2)
    assert float((after.samples - before.samples).abs().min()) > 0
    assert diagnose_samples(FAMILY, after, rows).ok


def test_tempering_gives_up_beyond_its_budget(rows: Tensor) -> None:
    config = TemperConfig(max_row_passes=1e5)
    with pytest.raises(NumericalFailure, match="new chains are cheaper"):
        temper(FAMILY, draws(rows), rows, torch.arange(60), generator(), config)


def test_row_passes_of_new_chains() -> None:
    assert SAFE_HMC.row_passes(200) == 4 * 600 * 4 * 200
    assert SAFE_BNN_SGLD.row_passes(60_000) == 2 * 3000 * 128


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"moves": 0}, "moves is 0"),
        ({"min_relative_ess": 1.0}, "min_relative_ess is 1"),
        ({"batch_size": 8}, "HMC reads every row"),
        ({"algorithm": SGLD(StepSize(0.1, 0.0))}, "pass a batch_size"),
    ],
)
def test_settings_that_make_no_sense_are_refused(config: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        TemperConfig(**config)  # type: ignore[arg-type]


def test_draws_of_worn_weights_are_restored_first(rows: Tensor) -> None:
    worn = weigh_unmoved(FAMILY, draws(rows), rows[:20])
    assert relative_ess(worn.log_weights) < 0.5
    after = temper(FAMILY, worn, rows[20:], torch.tensor([100]), generator(), TemperConfig(HMC(2, 0)))
    assert after.ess_path[0] < 0.5
    assert after.stages == 2
