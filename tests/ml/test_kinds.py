"""Each kind of posterior goes through `ml.forget`, `ml.readiness` and `ml.polish`."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load
from torch import Tensor

import ml
from ml.certify.network.rest import measure_rest
from ml.kinds import gains_from_threads, stored_kind
from ml.ladder import network, samples, variational
from ml.models.linear import LinearRegression
from ml.models.mlp import MLP
from tests.ml.ensembles import small_ensemble
from tests.ml.exact_posterior import exact_posterior
from tests.ml.networks import TINY, learnable_rows
from vocabulary.posterior_kinds import POSTERIOR_KINDS, POSTERIOR_TENSORS

FAMILY = LinearRegression(dimensions=2, noise_std=1.0, prior_std=1.0)
NETWORK = MLP(dimensions=3, hidden=2, classes=2, prior_std=0.5)
ROWS = torch.randn(200, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
FORGOTTEN = torch.arange(2)
LOOSE = ml.Policy(1.0, level="estimated", rungs=("influence",))


def sample_set() -> ml.SampleSet:
    mean, covariance = exact_posterior(FAMILY, ROWS)
    noise = torch.randn(2000, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return ml.SampleSet(mean + noise @ torch.linalg.cholesky(covariance).T, torch.arange(4).repeat_interleave(500))


def network_rows() -> Tensor:
    return learnable_rows(NETWORK, 200)


def test_a_variational_posterior_takes_the_ladder_with_closed_forms() -> None:
    posterior = FAMILY.optimum(ROWS)
    outcome = ml.forget(FAMILY, posterior, ROWS, FORGOTTEN, LOOSE)
    expected = variational.forget(FAMILY, posterior, ROWS, FORGOTTEN, LOOSE)
    assert torch.equal(outcome.posterior.flat(), expected.posterior.flat())
    assert (outcome.certificate.level, outcome.policy_met) == ("proved", True)
    assert ml.readiness(FAMILY, posterior, ROWS).levels == ("proved",)


def test_a_sample_set_takes_the_ladder_of_maps() -> None:
    posterior = sample_set()
    outcome = ml.forget(FAMILY, posterior, ROWS, FORGOTTEN, LOOSE)
    expected = samples.forget(FAMILY, posterior, ROWS, FORGOTTEN, LOOSE)
    assert torch.equal(outcome.posterior.samples, expected.posterior.samples)
    assert outcome.certificate.level == "estimated"
    assert ml.readiness(FAMILY, posterior, ROWS).numbers["draws"] == 2000


def test_a_network_takes_the_ladder_of_networks() -> None:
    data, posterior = network_rows(), NETWORK.initial(seed=1)
    steps: list[str] = []
    policy = ml.Policy(1e3, level="estimated", rungs=("influence",))
    outcome = ml.forget(NETWORK, posterior, data, FORGOTTEN, policy, on_step=lambda step: steps.append(step.rung))
    expected = network.forget(NETWORK, posterior, data, FORGOTTEN, policy)
    assert torch.equal(outcome.posterior.flat(), expected.posterior.flat())
    assert steps == ["influence"]
    assert ml.readiness(NETWORK, posterior, data).numbers["residual_of_a_row"] > 0


def test_polish_reaches_the_optimum_of_a_family() -> None:
    optimum = FAMILY.optimum(ROWS)
    iterations: list[int] = []
    start = ml.MeanFieldGaussian(optimum.mean + 0.1, 1.5 * optimum.std)
    polished = ml.polish(FAMILY, start, ROWS, iterations.append)
    assert polished.kl(optimum) < 1e-15
    assert iterations == list(range(1, len(iterations) + 1))
    assert torch.equal(ml.polish(FAMILY, start, ROWS).flat(), polished.flat())


def test_polish_moves_the_means_of_a_network_and_leaves_the_widths() -> None:
    data, posterior = network_rows(), NETWORK.initial(seed=1)
    polished = ml.polish(NETWORK, posterior, data)
    assert torch.equal(polished.std, posterior.std)
    before, after = (measure_rest(NETWORK, stored, data)["residual"] for stored in (posterior, polished))
    assert after < before


def test_samples_cannot_be_polished() -> None:
    with pytest.raises(ml.InvalidInput, match="run the chains longer"):
        ml.polish(FAMILY, sample_set(), ROWS)


def test_an_ensemble_trains_members_again_and_is_not_polished() -> None:
    ensemble, data = small_ensemble()
    outcome = ml.forget(TINY, ensemble, data, torch.tensor([0, 1, 2]), ml.Policy(1e-6))
    assert [rung.name for rung in outcome.rungs] == ["retrain"]
    assert ml.readiness(TINY, ensemble, data).levels == ("retrained",)
    with pytest.raises(ml.InvalidInput, match="lethe train ensemble"):
        ml.polish(TINY, ensemble, data)


def test_only_networks_have_ensembles() -> None:
    with pytest.raises(ml.InvalidInput, match="only networks"):
        ml.readiness(FAMILY, small_ensemble()[0], ROWS)


def test_a_stored_posterior_is_read_by_its_kind() -> None:
    posteriors: dict[str, ml.Posterior] = {
        "variational": FAMILY.optimum(ROWS),
        "samples": sample_set(),
        "ensemble": small_ensemble()[0],
    }
    assert tuple(posteriors) == POSTERIOR_KINDS
    for kind, posterior in posteriors.items():
        content = posterior.to_bytes()
        assert stored_kind(load(content)) == kind
        assert set(load(content)) == set(POSTERIOR_TENSORS[kind])  # type: ignore[index]
        assert ml.read_posterior(kind, content).to_bytes() == content
    with pytest.raises(ml.InvalidInput, match="'mean' and 'std'"):
        ml.read_posterior("variational", sample_set().to_bytes())


def test_networks_gain_nothing_from_threads() -> None:
    assert gains_from_threads(FAMILY)
    assert not gains_from_threads(NETWORK)
