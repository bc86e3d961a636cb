"""On a network with one layer and almost no noise, many terms of the paper's recursion give the exact influence."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ml.baselines.paper_network import (
    PAPER_SGLD,
    PAPER_VI,
    PaperNetworkRecipe,
    _recursion,
    paper_forget_network,
    paper_forget_network_samples,
)
from ml.errors import InvalidInput, NumericalFailure
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.networks import TINY, OneLayer, dense_gauss_newton, labelled_rows, random_theta

NETWORK = OneLayer()
LONG = PaperNetworkRecipe(scale=0.3, num_terms=800, batch_size=1024)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def exact(theta: Tensor, present: Tensor, group: Tensor) -> Tensor:
    """Return H⁻¹ Σ ∇h, with H over every row still present."""
    matrix = dense_gauss_newton(NETWORK, theta, present)
    matrix += torch.eye(len(theta), dtype=torch.float64) / NETWORK.prior_std**2
    at = theta.clone().requires_grad_()
    gradient = torch.autograd.grad(-NETWORK.log_likelihood(at, group).sum(), at)[0]
    return torch.linalg.solve(matrix, gradient)


def repeated_rows(n: int) -> Tensor:
    """Return copies of three rows, so that a minibatch resembles the whole."""
    return labelled_rows(NETWORK, 3).repeat(n // 3, 1)


def test_with_many_terms_and_no_noise_samples_move_by_the_exact_influence() -> None:
    theta, data = random_theta(NETWORK), repeated_rows(300)
    samples = theta + 1e-6 * torch.randn(4, len(theta), generator=seeded(1), dtype=torch.float64)
    forgotten = torch.tensor([0, 3, 7, 9])
    after = paper_forget_network_samples(NETWORK, samples, data, forgotten, seeded(), LONG)
    drift, expected = after.samples[0] - samples[0], exact(theta, data, data[forgotten])
    assert float((drift - expected).norm()) < 0.05 * float(expected.norm())
    assert torch.allclose(after.samples - samples, drift.expand(4, -1), rtol=0, atol=1e-12)
    assert after.scale == LONG.scale


def test_few_terms_leave_most_of_the_influence() -> None:
    theta, data = random_theta(NETWORK), repeated_rows(300)
    forgotten, samples = torch.tensor([0, 3, 7, 9]), theta.repeat(2, 1)
    after = paper_forget_network_samples(NETWORK, samples, data, forgotten, seeded(), PAPER_SGLD)
    expected = exact(theta, data, data[forgotten])
    assert float((after.samples[0] - theta - expected).norm()) > 0.5 * float(expected.norm())


def test_with_many_terms_the_means_of_a_narrow_posterior_move_by_the_exact_influence() -> None:
    """Not narrower: 1/σ² is a curvature in (μ, σ), for which c must be small enough."""
    theta, data, forgotten = random_theta(NETWORK), repeated_rows(300), torch.tensor([0, 3, 7, 9])
    posterior = MeanFieldGaussian(theta, torch.full_like(theta, 0.05))
    recipe = replace(LONG, num_draws=400)
    after = paper_forget_network(NETWORK, posterior, data, forgotten, seeded(), recipe)
    expected = exact(theta, data, data[forgotten])
    assert float((after.posterior.mean - theta - expected).norm()) < 0.15 * float(expected.norm())
    assert bool((after.posterior.std > 0).all())


def test_the_scale_is_halved_until_the_recursion_converges_and_is_returned() -> None:
    """-log σ has the curvature 1/σ² = 1600, and 0.1/60 of that is 2.7: beyond 2, the limit of convergence."""
    theta, data = random_theta(NETWORK), repeated_rows(60)
    narrow = MeanFieldGaussian(theta, torch.full_like(theta, 0.025))
    after = paper_forget_network(NETWORK, narrow, data, torch.tensor([0]), seeded(), PAPER_VI)
    assert after.scale == PAPER_VI.scale / 2
    wider = MeanFieldGaussian(theta, torch.full_like(theta, 0.05))
    assert paper_forget_network(NETWORK, wider, data, torch.tensor([0]), seeded(), PAPER_VI).scale == PAPER_VI.scale


def test_it_fails_if_the_recursion_diverges_with_every_scale() -> None:
    theta, data = random_theta(NETWORK), repeated_rows(60)
    point = MeanFieldGaussian(theta, torch.full_like(theta, 1e-6))
    with pytest.raises(NumericalFailure, match="diverges even with c"):
        paper_forget_network(NETWORK, point, data, torch.tensor([0]), seeded(), PAPER_VI)


def test_the_recursion_is_the_truncated_series() -> None:
    matrix = torch.diag(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))
    vector, c = torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64), 0.1
    computed = _recursion(lambda v: matrix @ v, vector, 10, c)
    share = 1 - (1 - c * matrix.diagonal()) ** 11
    assert torch.allclose(computed, share * vector / matrix.diagonal(), rtol=1e-13, atol=0)
    with pytest.raises(NumericalFailure, match="diverges at term"):
        _recursion(lambda v: 100 * v, vector, 10, c)


def test_groups_are_removed_in_the_given_order() -> None:
    """One call with two groups equals two calls, the second on the rows left by the first."""
    data, posterior = labelled_rows(TINY, 40), TINY.initial(seed=0, std=0.1)
    recipe, groups = replace(PAPER_VI, group_size=3), []
    forgotten = torch.tensor([30, 2, 17, 5, 8])
    together = paper_forget_network(
        TINY, posterior, data, forgotten, seeded(), recipe, lambda number, total: groups.append((number, total))
    )
    assert groups == [(1, 2), (2, 2)]
    generator = seeded()
    first = paper_forget_network(TINY, posterior, data, forgotten[:3], generator, recipe).posterior
    keep = torch.ones(40, dtype=torch.bool)
    keep[forgotten[:3]] = False
    positions = (keep.cumsum(0) - 1)[forgotten[3:]]
    second = paper_forget_network(TINY, first, data[keep], positions, generator, recipe).posterior
    assert torch.allclose(together.posterior.flat(), second.flat(), rtol=1e-12, atol=1e-14)
    reversed_order = paper_forget_network(TINY, posterior, data, forgotten.flip(0), seeded(), recipe).posterior
    assert not torch.allclose(together.posterior.flat(), reversed_order.flat(), rtol=1e-6)


def test_the_generator_decides_the_result() -> None:
    data, samples = labelled_rows(TINY, 40), torch.stack([random_theta(TINY), random_theta(TINY, 1)])
    first, again, other = (
        paper_forget_network_samples(TINY, samples, data, torch.tensor([4]), seeded(seed), PAPER_SGLD).samples
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_invalid_input_is_refused() -> None:
    data, posterior, forgotten = labelled_rows(TINY, 20), TINY.initial(seed=0), torch.tensor([1])
    with pytest.raises(InvalidInput, match="31 parameters"):
        paper_forget_network(TINY, MeanFieldGaussian(posterior.mean[1:], posterior.std[1:]), data, forgotten, seeded())
    with pytest.raises(InvalidInput, match="named twice"):
        paper_forget_network(TINY, posterior, data, torch.tensor([1, 1]), seeded())
    with pytest.raises(InvalidInput, match="delete the model"):
        paper_forget_network(TINY, posterior, data, torch.arange(20), seeded())
    with pytest.raises(InvalidInput, match="4 columns"):
        paper_forget_network(TINY, posterior, data[:, 1:], forgotten, seeded())
    with pytest.raises(InvalidInput, match="31 parameters"):
        paper_forget_network_samples(TINY, posterior.mean.unsqueeze(0)[:, 1:], data, forgotten, seeded(), PAPER_SGLD)
    with pytest.raises(InvalidInput, match="scale"):
        PaperNetworkRecipe(scale=0.0)
    with pytest.raises(InvalidInput, match="num_terms"):
        PaperNetworkRecipe(scale=0.1, num_terms=0)
