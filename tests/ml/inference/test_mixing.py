from __future__ import annotations

import torch

from ml.inference.mixing import Mixing, by_chain, measure_mixing


def independent(chains: int = 4, length: int = 500, series: int = 3) -> torch.Tensor:
    return torch.randn(chains, length, series, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def mixing(ess: float, series: int) -> Mixing:
    return Mixing(torch.ones(series), torch.full((series,), ess), chains=4, draws=8_000)


def test_independent_draws_mix() -> None:
    measured = measure_mixing(independent())
    assert measured.r_hat < 1.01
    assert 1_500 < measured.ess <= 2_000


def test_the_worst_series_is_found() -> None:
    series = independent()
    series[0, :, 1] += 3.0
    measured = measure_mixing(series)
    assert (measured.worst, measured.least) == (1, 1)
    assert measured.r_hat > 1.2
    assert measured.ess < 100


def test_a_constant_series_does_not_mix() -> None:
    series = independent()
    series[..., 2] = 1.0
    measured = measure_mixing(series)
    assert measured.worst == 2
    assert not measured.r_hat <= 1.01


def test_the_limit_of_r_hat_is_met_by_true_draws() -> None:
    """1.01, or what few draws of many series exceed by chance."""
    assert mixing(4_000, 3).r_hat_limit(1.01) == 1.01
    assert 1.03 < mixing(400, 10).r_hat_limit(1.01) < 1.06
    assert mixing(10, 10).r_hat_limit(1.01) == mixing(400, 10).r_hat_limit(1.01)


def test_chains_are_truncated_to_the_shortest() -> None:
    values, chain = torch.arange(5), torch.tensor([0, 0, 0, 1, 1])
    assert by_chain(values, chain).tolist() == [[0, 1], [3, 4]]
