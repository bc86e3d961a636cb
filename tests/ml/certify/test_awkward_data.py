"""Certificates on awkward data: where the truth allows a bound, one is given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ml.certify import certify
from ml.inference.variational import train
from ml.ladder.policy import Policy
from ml.ladder.variational import forget
from ml.models import build_family
from ml.models.family import Family
from ml.posteriors.mean_field import MeanFieldGaussian

POLICY = Policy(1e-6, rungs=("influence", "newton", "warm"))
CONFIGS: dict[str, dict[str, Any]] = {
    "linear-regression": {"noise_std": 0.5, "prior_std": 2.0},
    "logistic-regression": {"prior_std": 2.0},
    "softmax-regression": {"prior_std": 2.0, "classes": 3, "draws": 4, "seed": 0},
}
CASES = ["unscaled", "collinear", "equal columns", "fewer rows than columns", "heavy tails", "one huge row", "offset"]


def awkward_features(case: str, generator: torch.Generator) -> Tensor:
    features = torch.randn(6 if case == "fewer rows than columns" else 60, 4, generator=generator, dtype=torch.float64)
    if case == "fewer rows than columns":
        return torch.cat([features, features.flip(1).square()], 1)
    if case == "unscaled":
        return features * torch.tensor([1e-4, 1e-2, 1e2, 1e4], dtype=torch.float64)
    if case == "collinear":
        features[:, 0] = features[:, 1] - features[:, 2] + 1e-5 * features[:, 0]
    elif case == "equal columns":
        features[:, 0] = features[:, 1]
    elif case == "heavy tails":
        return features / torch.rand(60, 1, generator=generator, dtype=torch.float64)
    elif case == "one huge row":
        features[0] *= 1e3
    elif case == "offset":
        features += 30
    return features


def awkward_rows(name: str, case: str, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    features = awkward_features(case, generator)
    weights = torch.randn(features.shape[1], 3, generator=generator, dtype=torch.float64)
    logits = features / features.square().mean(0).sqrt() @ weights
    if name == "linear-regression":
        return torch.cat([features, logits[:, :1]], 1)
    classes = logits[:, :2] if name == "logistic-regression" else logits
    return torch.cat([features, torch.multinomial(classes.softmax(1), 1, generator=generator).double()], 1)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", CONFIGS)
def test_awkward_columns_are_certified(name: str, case: str) -> None:
    """Forget the first row, and half of the rows. The truth is training from scratch."""
    data = awkward_rows(name, case)
    family = build_family(name, {**CONFIGS[name], "dimensions": data.shape[1] - 1})
    posterior = train(family, data, family.initial(data, 0)).posterior
    for forgotten in (torch.tensor([0]), torch.arange(len(data) // 2)):
        outcome = forget(family, posterior, data, forgotten, POLICY)
        retained = data[len(forgotten) :]
        truth = train(family, retained, family.initial(retained, 0), tolerance=0.0).posterior
        assert (outcome.certificate.level, outcome.policy_met) == ("proved", True)
        assert outcome.posterior.kl(truth) <= outcome.certificate.epsilon


def test_a_mixture_with_a_component_of_three_rows_is_certified() -> None:
    generator = torch.Generator().manual_seed(0)
    large = torch.randn(300, 2, generator=generator, dtype=torch.float64)
    small = 9 + 0.3 * torch.randn(3, 2, generator=generator, dtype=torch.float64)
    data = torch.cat([small, large])
    family = build_family("gaussian-mixture", {"components": 2, "dimensions": 2, "prior_std": 5.0})
    start = MeanFieldGaussian(torch.tensor([[9.0, 9.0], [0.0, 0.0]]).double(), torch.full((2, 2), 0.1).double())
    posterior = train(family, data, start).posterior
    assert float(posterior.std.max() / posterior.std.min()) > 8
    for forgotten in (torch.tensor([0]), torch.arange(3, 100)):
        outcome = forget(family, posterior, data, forgotten, POLICY)
        assert (outcome.certificate.level, outcome.policy_met) == ("proved", True)


def moved(posterior: MeanFieldGaussian) -> MeanFieldGaussian:
    """Return a posterior a few thousandths of a width away."""
    return MeanFieldGaussian(posterior.mean + 0.003 * posterior.std, 1.002 * posterior.std)


def rescaled_optimum(factors: Tensor) -> tuple[Family, MeanFieldGaussian, Tensor]:
    """Return linear regression with rescaled columns and so weak a prior that rescaling does not change the model."""
    data = awkward_rows("linear-regression", "heavy tails")
    data[:, :-1] *= factors
    family = build_family("linear-regression", {"dimensions": 4, "noise_std": 0.5, "prior_std": 1e12})
    return family, train(family, data, family.initial(data, 0)).posterior, data


@pytest.mark.parametrize("exponents", [[1, 2, 3, 4], [-20, 0, 10, 20]])
def test_the_unit_of_a_column_changes_no_number_of_a_certificate(exponents: list[int]) -> None:
    units = torch.tensor([2.0**exponent for exponent in exponents], dtype=torch.float64)
    family, posterior, data = rescaled_optimum(torch.ones(4, dtype=torch.float64))
    other_family, other_posterior, other_data = rescaled_optimum(units)
    assert torch.allclose(other_posterior.std * units, posterior.std, rtol=1e-9)
    certificate = certify(family, moved(posterior), data)
    rescaled = certify(other_family, moved(other_posterior), other_data)
    assert (certificate.level, rescaled.level) == ("proved", "proved")
    assert rescaled.epsilon == pytest.approx(certificate.epsilon, rel=1e-6)
    for name in ("newton_step_norm", "lambda_min", "lipschitz", "kantorovich", "radius"):
        assert getattr(rescaled.constants, name) == pytest.approx(getattr(certificate.constants, name), rel=1e-6)
