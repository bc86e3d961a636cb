from __future__ import annotations

import statistics

import pytest
import torch

from ml.certify.network.sample import NetworkSample, split_rows
from ml.models.network import Network
from ml.models.network_energy import NetworkEnergy, frozen_draws
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.certify.network.conftest import DRAWS, Smooth, seeded
from tests.ml.networks import OneLayer, dense_gauss_newton, labelled_rows, random_theta


@pytest.mark.parametrize("network", [Smooth(), OneLayer()])
def test_products_and_tangents_equal_those_of_the_dense_matrix(network: Network) -> None:
    data, posterior = labelled_rows(network, 30), MeanFieldGaussian(random_theta(network), random_theta(network) ** 2)
    energy, rows = NetworkEnergy(network, data, frozen_draws(posterior, DRAWS, seed=0)), torch.tensor([2, 3, 7, 11, 18])
    dense = sum(dense_gauss_newton(network, energy.draws[row % DRAWS], data[row : row + 1]) for row in rows.tolist())
    vector, other = random_theta(network, 5), random_theta(network, 6)
    expected = 6 * dense @ vector + vector / network.prior_std**2
    sample = NetworkSample(energy, rows, 30)
    assert torch.allclose(sample.product(vector), expected, rtol=1e-10, atol=0)
    tangent, other_tangent = sample.tangent(vector), sample.tangent(other)
    for drift, curvatures in ((vector, tangent.curvature(tangent)), (other, tangent.curvature(other_tangent))):
        form = sample.bilinear_form(vector, drift, curvatures)
        assert form == pytest.approx(float(drift.dot(expected)), rel=1e-10)
    slope = 6 * float(energy.misfit_gradient(torch.zeros_like(vector), rows).dot(vector))
    assert 30 * float(tangent.slope.mean()) == pytest.approx(slope, rel=1e-10)
    assert 30 * float(sample.misfits(vector).mean()) == pytest.approx(6 * energy.misfit(vector, rows), rel=1e-10)
    assert torch.equal(sample.misfits_before, sample.misfits(torch.zeros_like(vector)))


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


def test_rows_are_split_without_overlap_or_all_used_twice() -> None:
    rows, held_out = split_rows(torch.arange(100, 200), 30, 60, seeded())
    assert (len(rows), len(held_out), len(set(rows.tolist() + held_out.tolist()))) == (30, 60, 90)
    exactly_enough = split_rows(torch.arange(90), 30, 60, seeded())
    assert [len(part) for part in exactly_enough] == [30, 60]
    assert all(torch.equal(part, torch.arange(89)) for part in split_rows(torch.arange(89), 30, 60, seeded()))
