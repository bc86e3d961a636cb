"""The contract of `Likelihood`, for every built-in family."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from ml.errors import InvalidInput
from ml.models import build
from ml.models.likelihood import Likelihood
from tests.vocabulary.configurations import CONFIGS
from vocabulary.families import FAMILIES

NAMES = [name for name in FAMILIES if name != "lenet5"]  # the MLP stands for both networks
ROWS = 12


def likelihood_and_data(name: str) -> tuple[Likelihood, Tensor]:
    layout = FAMILIES[name].config(**CONFIGS[name]).layout
    data = torch.randn(ROWS, layout.columns or 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if layout.classes is not None:
        data[:, -1] = torch.arange(ROWS) % layout.classes
    return build(name, CONFIGS[name]), data


def random_thetas(likelihood: Likelihood, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, likelihood.parameter_count, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("name", NAMES)
def test_each_row_has_its_own_term(name: str) -> None:
    likelihood, data = likelihood_and_data(name)
    theta = random_thetas(likelihood, 1)[0]
    terms = likelihood.log_likelihood(theta, data)
    assert terms.shape == (ROWS,)
    single = torch.cat([likelihood.log_likelihood(theta, row) for row in data.split(1)])
    assert torch.allclose(terms, single, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_the_prior_is_gaussian(name: str) -> None:
    likelihood, _ = likelihood_and_data(name)
    theta = random_thetas(likelihood, 1)[0]
    expected = torch.distributions.Normal(0.0, CONFIGS[name]["prior_std"]).log_prob(theta).sum()
    assert float(likelihood.log_prior(theta)) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_it_works_under_vmap_and_grad(name: str) -> None:
    likelihood, data = likelihood_and_data(name)
    thetas = random_thetas(likelihood, 3)

    def potential(theta: Tensor) -> Tensor:
        return -likelihood.log_likelihood(theta, data).sum() - likelihood.log_prior(theta)

    gradients = vmap(grad(potential))(thetas)
    for theta, gradient in zip(thetas, gradients, strict=True):
        leaf = theta.clone().requires_grad_()
        assert torch.allclose(gradient, torch.autograd.grad(potential(leaf), leaf)[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_another_width_are_refused(name: str) -> None:
    likelihood, data = likelihood_and_data(name)
    likelihood.check_data(data)
    with pytest.raises(InvalidInput, match="columns"):
        likelihood.check_data(data[:, 1:])
