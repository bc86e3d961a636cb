from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ml.certify import function_space
from ml.certify.function_space import FunctionSpace, categorical_kl, measure_function_space
from ml.certify.predictive import WeightedDraws, class_log_probabilities, weighted_draws
from ml.errors import InvalidInput, NumericalFailure
from ml.models.logistic import LogisticRegression
from ml.models.mlp import MLP
from ml.posteriors.mean_field import MeanFieldGaussian
from tests.ml.networks import labelled_rows

FAMILY = LogisticRegression(1, prior_std=2.0)
GRID = torch.linspace(-12, 12, 401, dtype=torch.float64)


def on_grid(log_density: Tensor) -> WeightedDraws:
    """Return all of a one-dimensional posterior: its expectations are sums over the grid."""
    return WeightedDraws(GRID.unsqueeze(1), torch.softmax(log_density, 0))


def gaussian(mean: float, std: float) -> WeightedDraws:
    return on_grid(-(((GRID - mean) / std) ** 2) / 2)


def one_feature(n: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, generator=generator, dtype=torch.float64)
    labels = torch.rand(n, generator=generator, dtype=torch.float64) < (1.5 * features).sigmoid()
    return torch.stack([features, labels.double()], 1)


def predicted(mean: float, std: float, x: float) -> float:
    """Return E sigmoid(xθ) for θ ~ N(mean, std²), by its values at 20,000 quantiles."""
    quantiles = torch.special.ndtri((torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000)
    return float((x * (mean + std * quantiles)).sigmoid().mean())


def binary_kl(p: float, q: float) -> float:
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def test_the_shift_of_gaussians_is_that_of_their_predictives() -> None:
    rows = torch.tensor([[1.0, 1.0], [2.0, 0.0], [-0.5, 1.0]], dtype=torch.float64)
    space = measure_function_space(FAMILY, gaussian(1.0, 0.7), gaussian(0.4, 0.9), rows[:2], rows[2:])
    before = [predicted(1.0, 0.7, float(x)) for x in rows[:, 0]]
    after = [predicted(0.4, 0.9, float(x)) for x in rows[:, 0]]
    divergences = [binary_kl(p, q) for p, q in zip(after, before, strict=True)]
    forgotten, retained = space.forgotten, space.retained
    assert forgotten.kl == pytest.approx(sum(divergences[:2]) / 2, rel=1e-4)
    assert forgotten.kl_max == pytest.approx(max(divergences[:2]), rel=1e-4)
    assert retained.kl == pytest.approx(divergences[2], rel=1e-4)
    assert retained.kl_reverse == pytest.approx(binary_kl(before[2], after[2]), rel=1e-4)
    assert forgotten.label_before == pytest.approx((before[0] + 1 - before[1]) / 2, rel=1e-4)
    assert forgotten.label_after == pytest.approx((after[0] + 1 - after[1]) / 2, rel=1e-4)
    assert (forgotten.error_before, forgotten.rows, space.never_seen) == (0.5, 2, None)
    assert (space.draws_before, space.draws_after) == (401, 401)


def test_no_prediction_moves_farther_than_the_posterior() -> None:
    """Data processing, with all of both posteriors: KL of predictions is at most KL of the posteriors."""
    for seed in range(10):
        data = one_feature(15, seed)
        log_densities = [
            torch.stack([FAMILY.log_likelihood(theta, rows).sum() for theta in GRID.unsqueeze(1)]) - GRID**2 / 8
            for rows in (data, data[4:])
        ]
        before, after = (on_grid(values) for values in log_densities)
        truth = float((after.weights * (after.weights / before.weights).log()).sum())
        space = measure_function_space(FAMILY, before, after, data[:4], data[4:], one_feature(200, seed + 100))
        assert space.never_seen is not None
        largest = max(shift.kl_max for shift in (space.forgotten, space.retained, space.never_seen))
        assert 0 < largest <= truth


def test_an_unchanged_posterior_moves_nothing_and_fresh_draws_of_it_no_more_than_noise() -> None:
    network, rows = MLP(3, hidden=4, classes=3), labelled_rows(MLP(3, hidden=4, classes=3), 300).float()
    posterior = network.initial(seed=0, std=0.5)
    draws = [weighted_draws(posterior, 64, seed, "draws") for seed in (0, 0, 1)]
    same, fresh = (measure_function_space(network, draws[0], other, rows[:100], rows[100:]) for other in draws[1:])
    assert max(same.forgotten.kl_max, same.retained.kl_max, same.retained.kl_reverse) < 1e-15
    assert same.retained.label_before == pytest.approx(same.retained.label_after, rel=1e-12)
    assert 0 < fresh.retained.kl < fresh.retained.noise < 0.1


def test_draws_that_were_only_reweighted_are_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def count(family: LogisticRegression, theta: Tensor, rows: Tensor) -> Tensor:
        calls.append(theta)
        return class_log_probabilities(family, theta, rows)

    monkeypatch.setattr(function_space, "class_log_probabilities", count)
    before, after, rows = gaussian(1.0, 0.7), gaussian(0.4, 0.9), one_feature(20, seed=1)
    shared = measure_function_space(FAMILY, before, after, rows[:5], rows[5:])
    assert len(calls) == 401
    moved = measure_function_space(
        FAMILY, before, WeightedDraws(GRID.unsqueeze(1) + 1e-9, after.weights), rows[:5], rows[5:]
    )
    assert len(calls) == 3 * 401
    assert moved.forgotten.kl == pytest.approx(shared.forgotten.kl, rel=1e-6)
    assert moved.forgotten.noise == pytest.approx(shared.forgotten.noise, rel=1e-6)


def test_a_single_draw_has_no_noise_to_show() -> None:
    rows, draws = one_feature(60, seed=1), [WeightedDraws.even(GRID[position].view(1, 1)) for position in (210, 220)]
    shift = measure_function_space(FAMILY, *draws, rows[:30], rows[30:]).forgotten
    log_before, log_after = (class_log_probabilities(FAMILY, draw.thetas[0], rows[:30]) for draw in draws)
    assert shift.kl == pytest.approx(float(categorical_kl(log_after, log_before).mean()))
    assert math.isnan(shift.noise)
    assert math.isnan(shift.kl_error)
    assert (shift.to_dict()["noise"], shift.to_dict()["kl_error"]) == (None, None)


def test_the_standard_error_is_the_spread_over_sets_of_draws() -> None:
    network = MLP(3, hidden=4, classes=3)
    rows, posterior = labelled_rows(network, 60), network.initial(seed=0, std=0.3)
    moved = MeanFieldGaussian(posterior.mean * 1.5, posterior.std)
    shifts = []
    for seed in range(40):
        before, after = (weighted_draws(model, 64, seed, "draws") for model in (posterior, moved))
        shifts.append(measure_function_space(network, before, after, rows[:30], rows[30:]).forgotten)
    spread = torch.tensor([shift.kl for shift in shifts]).std()
    errors = torch.tensor([shift.kl_error for shift in shifts])
    assert float(errors.square().mean().sqrt()) == pytest.approx(float(spread), rel=0.4)
    assert float(errors.mean()) < 0.3 * shifts[0].kl


def test_rows_of_single_precision_give_nearly_the_same_divergences() -> None:
    network = MLP(3, hidden=4, classes=3)
    rows, posterior = labelled_rows(network, 60), network.initial(seed=0)
    moved = MeanFieldGaussian(posterior.mean * 1.01, posterior.std)
    before, after = (weighted_draws(model, 64, 0, "draws") for model in (posterior, moved))
    double, single = (
        measure_function_space(network, before, after, data[:30], data[30:]) for data in (rows, rows.float())
    )
    assert 1e-9 < double.forgotten.kl < 1e-4
    assert single.forgotten.kl == pytest.approx(double.forgotten.kl, rel=1e-3)


def test_large_groups_are_sampled_by_the_seed() -> None:
    rows = one_feature(3000, seed=1)

    def measure(seed: int) -> FunctionSpace:
        return measure_function_space(FAMILY, gaussian(1, 1), gaussian(0, 1), rows[:1500], rows[1500:], rows, seed)

    space = measure(seed=1)
    assert space.never_seen is not None
    assert (space.forgotten.rows, space.retained.rows, space.never_seen.rows) == (1000, 128, 128)
    assert space == measure(seed=1)
    assert space != measure(seed=2)


def test_divergences_of_categoricals_hold_up_to_rounding() -> None:
    p = torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]], dtype=torch.float64)
    q = torch.tensor([[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]], dtype=torch.float64)
    expected = torch.tensor([0.25 * math.log(2), math.log(2)], dtype=torch.float64)
    assert torch.allclose(categorical_kl(p.log(), q.log()), expected)
    assert float(categorical_kl(p.log(), p.log() + 1e-9)[0]) < 1e-15
    assert math.isinf(categorical_kl(q.log(), p.log())[1])


def test_groups_without_rows_are_refused() -> None:
    rows = one_feature(10, seed=1)
    for forgotten, retained in ((rows[:0], rows), (rows, rows[:0])):
        with pytest.raises(InvalidInput, match="nothing to compare"):
            measure_function_space(FAMILY, gaussian(1, 1), gaussian(0, 1), forgotten, retained)


def test_draws_that_are_not_numbers_are_a_failure() -> None:
    rows, broken = one_feature(10, seed=1), WeightedDraws.even(GRID.unsqueeze(1).log())
    with pytest.raises(NumericalFailure, match="NaN"):
        measure_function_space(FAMILY, gaussian(1, 1), broken, rows[:5], rows[5:])


def test_a_label_without_weight_is_a_failure() -> None:
    rows = torch.tensor([[1e3, 1.0], [1e3, 0.0]], dtype=torch.float64)
    certain, other = (WeightedDraws.even(torch.full((2, 1), theta, dtype=torch.float64)) for theta in (-1e306, 1e306))
    with pytest.raises(NumericalFailure, match="not finite"):
        measure_function_space(FAMILY, certain, other, rows[:1], rows[1:])
