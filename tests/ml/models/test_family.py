"""The contract of `Family`, for every built-in family."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ml.errors import InvalidInput
from ml.models import build_family
from ml.models.family import Expansion, Family, Rounding, width_scale
from ml.models.frozen_noise import FrozenNoiseFamily
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.models.attacks import lipschitz
from tests.vocabulary.configurations import CONFIGS
from vocabulary.families import FAMILIES

NAMES = [name for name, family in FAMILIES.items() if not family.is_network]
ROWS, GROUP = 40, 7


def family_and_data(name: str) -> tuple[Family, Tensor]:
    layout = FAMILIES[name].config(**CONFIGS[name]).layout
    data = torch.randn(ROWS, layout.columns or 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if layout.classes is not None:
        data[:, -1] = torch.arange(ROWS) % layout.classes
    return build_family(name, CONFIGS[name]), data


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_of_a_group_is_what_its_removal_takes_away(name: str) -> None:
    family, data = family_and_data(name)
    posterior = family.initial(data, 0)
    removed = family.expand(posterior, data).gradient - family.expand(posterior, data[GROUP:]).gradient
    assert torch.allclose(family.group_gradient(posterior, data[:GROUP]), removed, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_agree_with_finite_differences(name: str) -> None:
    family, data = family_and_data(name)
    posterior = family.initial(data, 0)
    expansion, flat = family.expand(posterior, data), posterior.flat()
    direction = torch.randn(len(flat), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    step = 1e-5 / float(direction.norm())
    after, before = (family.expand(posterior.with_flat(flat + sign * step * direction), data) for sign in (1, -1))
    slope = (after.energy - before.energy) / (2 * step)
    assert float(expansion.gradient.dot(direction)) == pytest.approx(slope, rel=1e-5)
    product = (after.gradient - before.gradient) / (2 * step)
    assert torch.allclose(expansion.hessian @ direction, product, rtol=1e-4, atol=1e-4)
    scale, radius = expansion.scale, step * float((direction / expansion.scale).norm())
    change = scale.unsqueeze(1) * (after.hessian - before.hessian) * scale
    third = torch.linalg.matrix_norm(change, 2) / (2 * radius)
    assert 0 < float(third) <= lipschitz(family, posterior, data, radius)


@pytest.mark.parametrize("name", NAMES)
def test_a_sweep_never_raises_the_energy(name: str) -> None:
    family, data = family_and_data(name)
    posterior = family.initial(data, 0)
    swept = family.sweep(posterior, data)
    assert family.expand(swept, data).energy < family.expand(posterior, data).energy


@pytest.mark.parametrize("name", NAMES)
def test_a_posterior_of_another_shape_is_refused(name: str) -> None:
    family, data = family_and_data(name)
    family.check_posterior(family.initial(data, 0))
    other = torch.ones(family.parameter_count + 1, dtype=torch.float64)
    with pytest.raises(InvalidInput, match="shape"):
        family.check_posterior(MeanFieldGaussian(other, other))


def test_the_scale_of_a_width_is_the_nearest_power_of_two() -> None:
    powers = torch.tensor([2.0**exponent for exponent in (-160, -1, 0, 3, 160)], dtype=torch.float64)
    for factor in (0.71, 0.999, 1.0, 1.001, 1.41):
        posterior = MeanFieldGaussian(torch.zeros_like(powers), factor * powers)
        assert torch.equal(width_scale(posterior), powers)


def test_an_expansion_scales_the_mean_and_the_width_of_a_parameter_alike() -> None:
    std = torch.tensor([[0.3, 5.0], [1.0, 1e-7]], dtype=torch.float64)
    expansion = Expansion(MeanFieldGaussian(std, std), 0.0, std, std, Rounding(0.0, 0.0))
    assert expansion.scale.tolist() == 2 * [0.25, 4.0, 1.0, 2.0**-23]


@pytest.mark.parametrize("name", NAMES)
def test_a_convex_energy_curves_upwards_everywhere(name: str) -> None:
    """The mixture's, which is not convex, curves downwards where two components share their rows."""
    family, data = family_and_data(name)
    start = family.initial(data, 0)
    merged = MeanFieldGaussian(torch.zeros_like(start.mean), start.std / 2)
    data[:, 0] *= 3
    least = [float(torch.linalg.eigvalsh(family.expand(at, data).hessian)[0]) for at in (start, merged)]
    assert (min(least) > 0) == family.convex


@pytest.mark.parametrize("name", NAMES)
def test_the_energy_is_named_for_the_certificate(name: str) -> None:
    family, _ = family_and_data(name)
    assert ("frozen noise draws" in family.energy_name) == isinstance(family, FrozenNoiseFamily)
    assert ("evidence lower bound" in family.energy_name) != isinstance(family, FrozenNoiseFamily)
