from __future__ import annotations

import pytest
import torch

from benchmarks.certificates.network_truth import Sampler, draw_particles, run_chains
from ml.inference.chains import SAFE_HMC, sample
from tests.ml.networks import OneLayer, learnable_rows

NETWORK = OneLayer()
ROWS = learnable_rows(NETWORK, 20, seed=1)


@pytest.mark.slow
def test_particles_have_the_moments_of_the_posterior() -> None:
    particles, step = draw_particles(NETWORK, ROWS, 600, torch.Generator().manual_seed(0))
    exact = sample(NETWORK, ROWS, NETWORK.initial(0).mean, SAFE_HMC, torch.Generator().manual_seed(1)).sample_set
    width = exact.samples.std(0)
    assert float(((particles.mean(0) - exact.mean) / width).abs().max()) < 5 / 600**0.5
    assert torch.allclose(particles.std(0) / width, torch.ones_like(width), atol=0.15)
    assert 0.01 < step < 1


def test_chains_keep_every_second_position() -> None:
    starts = torch.zeros(3, NETWORK.parameter_count, dtype=torch.float64)
    chains = run_chains(NETWORK, ROWS, starts, 4, 2, 0.05, torch.Generator().manual_seed(0))
    assert chains.samples.shape == (12, NETWORK.parameter_count)
    assert chains.chain.tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_a_short_step_is_accepted_and_a_long_one_refused() -> None:
    sampler, theta = Sampler(NETWORK, ROWS, 1.0), torch.zeros(50, NETWORK.parameter_count, dtype=torch.float64)
    shares = [sampler.move(theta, step, torch.Generator().manual_seed(0))[1] for step in (0.01, 3.0)]
    assert shares[0] > 0.95
    assert shares[1] < 0.05
