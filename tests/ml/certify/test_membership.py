from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor

from ml.certify.membership import attack, audit_membership, membership_scores
from ml.errors import InvalidInput, NumericalFailure
from ml.models.linear import LinearRegression
from ml.models.mlp import MLP

DIMENSIONS = 30
FAMILY = LinearRegression(DIMENSIONS, noise_std=1.0, prior_std=3.0)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def regression_rows(rows: int, seed: int) -> Tensor:
    """One truth for all seeds."""
    features = normal(rows, DIMENSIONS, seed=seed)
    target = features @ normal(DIMENSIONS, seed=0) + normal(rows, seed=seed + 1)
    return torch.cat([features, target.unsqueeze(1)], 1)


def exact_draws(data: Tensor, seed: int, draws: int = 200) -> Tensor:
    mean, covariance = FAMILY.exact_posterior(data)
    drawn: Tensor = mean + normal(draws, DIMENSIONS, seed=seed) @ torch.linalg.cholesky(covariance).T
    return drawn


def slow_auc(members: Tensor, others: Tensor) -> float:
    wins = (members.unsqueeze(1) > others).double() + 0.5 * (members.unsqueeze(1) == others).double()
    return float(wins.mean())


def phi(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


@pytest.mark.parametrize("gap", [-1.0, 0.0, 0.3, 1.0, 2.0])
def test_the_area_of_two_gaussians_has_a_closed_form(gap: float) -> None:
    found = attack(gap + normal(20_000, seed=1), normal(20_000, seed=2))
    assert found.auc == pytest.approx(phi(gap / math.sqrt(2)), abs=3 * found.error)
    assert 0 < found.error < 0.004
    best = 2 * phi(abs(gap) / 2) - 1  # at the threshold half-way
    above, below = (best, 0.0) if gap >= 0 else (0.0, best)
    assert found.advantage_above == pytest.approx(above, abs=found.chance)
    assert found.advantage_below == pytest.approx(below, abs=found.chance)
    assert found.chance == pytest.approx(math.sqrt(math.log(20) / 20_000))


def test_ties_count_half() -> None:
    members, others = (normal(50, seed=3) * 2).round(), (normal(70, seed=4) * 2).round()
    assert len({*members.tolist(), *others.tolist()}) < 20
    assert attack(members, others).auc == pytest.approx(slow_auc(members, others), rel=1e-12)
    alike = attack(torch.zeros(5, dtype=torch.float64), torch.zeros(9, dtype=torch.float64))
    assert (alike.auc, alike.error, alike.advantage_above, alike.advantage_below) == (0.5, 0.0, 0.0, 0.0)


def test_groups_that_do_not_overlap() -> None:
    low, high = torch.arange(5.0).double(), torch.arange(10.0, 20.0).double()
    apart, reversed_ = attack(high, low), attack(low, high)
    assert (apart.auc, apart.advantage_above, apart.advantage_below) == (1.0, 1.0, 0.0)
    assert (reversed_.auc, reversed_.advantage_above, reversed_.advantage_below) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(("members", "others"), [(40, 300), (100, 100)])
def test_two_standard_errors_cover_the_truth_as_often_as_they_should(members: int, others: int) -> None:
    """Groups of unequal width, so that the error under a null hypothesis would not do."""
    truth = phi(1 / math.sqrt(1 + 0.5**2))
    found = [attack(1 + 0.5 * normal(members, seed=s), normal(others, seed=10_000 + s)) for s in range(1000)]
    covered = sum(abs(one.auc - truth) <= 1.96 * one.error for one in found) / len(found)
    assert 0.92 <= covered <= 0.97


def test_permuted_labels_leave_nothing_to_find() -> None:
    pooled, generator = torch.cat([3 + normal(80, seed=5), normal(120, seed=6)]), torch.Generator().manual_seed(7)
    assert attack(pooled[:80], pooled[80:]).auc > 0.95
    found = []
    for _ in range(400):
        mixed = pooled[torch.randperm(200, generator=generator)]
        found.append(attack(mixed[:80], mixed[80:]))
    assert sum(one.auc for one in found) / len(found) == pytest.approx(0.5, abs=0.01)
    assert sum(abs(one.auc - 0.5) <= 1.96 * one.error for one in found) >= 0.92 * len(found)
    assert sum(one.advantage_above <= one.chance for one in found) >= 0.93 * len(found)
    assert sum(one.advantage_below <= one.chance for one in found) >= 0.93 * len(found)


def test_the_score_is_the_log_of_the_mean_likelihood() -> None:
    rows = regression_rows(2500, seed=8)
    draws = exact_draws(rows[:60], seed=9, draws=7)
    expected = torch.stack([FAMILY.log_likelihood(theta, rows) for theta in draws]).exp().mean(0).log()
    assert torch.allclose(membership_scores(FAMILY, draws, rows), expected, rtol=1e-10, atol=0)
    far = rows.clone()
    far[:, -1] += 1e4  # likelihoods of 0 in float64, and still scores
    assert bool(torch.isfinite(membership_scores(FAMILY, draws, far)).all())


def test_networks_are_scored_in_the_precision_of_their_rows() -> None:
    network = MLP(dimensions=3, hidden=4, classes=2)
    rows = torch.cat([normal(50, 3, seed=10), (torch.arange(50) % 2).double().unsqueeze(1)], 1)
    draws = normal(5, network.parameter_count, seed=11)
    single = membership_scores(network, draws, rows.float())
    assert single.dtype == torch.float64
    assert torch.allclose(single, membership_scores(network, draws, rows), atol=1e-5)


def test_an_overfitted_model_tells_members_and_forgetting_as_good_as_retraining_ends_that() -> None:
    data, unseen = regression_rows(90, seed=20), regression_rows(1000, seed=22)
    forgotten, retained = data[:40], data[40:]
    before, after = exact_draws(data, seed=24), exact_draws(retained, seed=24)
    report = audit_membership(FAMILY, before, after, forgotten, retained, unseen)
    assert report.before.forgotten is not None
    assert report.after.forgotten is not None
    assert report.before.forgotten.auc > 0.5 + 3 * report.before.forgotten.error
    assert report.before.forgotten.advantage_above > report.before.forgotten.chance
    assert abs(report.after.forgotten.auc - 0.5) <= report.after.forgotten.error
    assert report.after.retained is not None
    assert report.after.retained.auc > 0.5 + 3 * report.after.retained.error
    skipped = audit_membership(FAMILY, before, before, forgotten, retained, unseen)
    assert skipped.after == report.before


def test_after_forgetting_the_attack_is_blind_on_average() -> None:
    areas = []
    for repetition in range(30):
        data = regression_rows(90, seed=1000 + 10 * repetition)
        unseen = regression_rows(300, seed=1005 + 10 * repetition)
        after = exact_draws(data[40:], seed=repetition, draws=50)
        report = audit_membership(FAMILY, after, after, data[:40], data[40:], unseen)
        assert report.after.forgotten is not None
        areas.append(report.after.forgotten.auc)
    found = torch.tensor(areas)
    assert float(found.mean()) == pytest.approx(0.5, abs=3 * float(found.std()) / math.sqrt(30))
    assert float(found.std()) < 0.08


def test_the_worst_example_is_the_one_that_was_kept() -> None:
    """A row that is retained after all, though asked to be forgotten, among others that truly are forgotten."""
    data, unseen = regression_rows(60, seed=30), regression_rows(999, seed=32)
    data[7, :-1] *= 30
    data[7, -1] = data[7, :-1].sum()
    draws = exact_draws(data[7:], seed=34)
    scored, others = membership_scores(FAMILY, draws, data[:8]), membership_scores(FAMILY, draws, unseen)
    report = audit_membership(FAMILY, exact_draws(data, seed=33), draws, data[:8], data[8:], unseen)
    assert report.worst is not None
    assert report.worst.position == int(scored.argmax()) == 7
    assert report.worst.p_value == pytest.approx((1 + int((others >= scored.max()).sum())) / 1000)
    assert report.worst.adjusted == min(1.0, 8 * report.worst.p_value)


def test_p_values_of_a_row_like_any_other_are_uniform() -> None:
    """Bonferroni's are below 0.05 in 5 % of groups at most: here of 5 forgotten rows that nothing was trained on."""
    draws = exact_draws(regression_rows(90, seed=40), seed=41, draws=3)
    adjusted, single = [], []
    for repetition in range(150):
        rows = regression_rows(104, seed=5000 + 2 * repetition)
        report = audit_membership(FAMILY, draws, draws, rows[:5], rows[:1], rows[5:])
        assert report.worst is not None
        adjusted.append(report.worst.adjusted)
        alone = audit_membership(FAMILY, draws, draws, rows[:1], rows[:1], rows[5:])
        assert alone.worst is not None
        single.append(alone.worst.p_value)
    assert sum(p <= 0.05 for p in adjusted) <= 0.09 * len(adjusted)
    assert sum(single) / len(single) == pytest.approx(0.505, abs=0.06)
    assert 0.02 <= sum(p <= 0.1 for p in single) / len(single) <= 0.16


def test_large_groups_are_sampled_and_the_seed_decides_how() -> None:
    data, unseen = regression_rows(6000, seed=50), regression_rows(5000, seed=52)
    draws = exact_draws(data, seed=54, draws=3)
    report = audit_membership(FAMILY, draws, draws, data[:30], data[30:], unseen, seed=1)
    assert (report.n_forgotten, report.n_retained, report.n_never_seen) == (30, 4096, 4096)
    assert report == audit_membership(FAMILY, draws, draws, data[:30], data[30:], unseen, seed=1)
    assert report != audit_membership(FAMILY, draws, draws, data[:30], data[30:], unseen, seed=2)


def test_the_report_is_plain_json_and_holds_quantiles_instead_of_rows() -> None:
    data, unseen = regression_rows(90, seed=60), regression_rows(50, seed=62)
    draws = exact_draws(data, seed=64, draws=10)
    content = audit_membership(FAMILY, draws, draws, data[:1], data[1:], unseen).to_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    after = content["after"]
    assert isinstance(after, dict)
    assert after["forgotten"]["error"] is None  # of one row there is none
    assert after["forgotten_quantiles"] == []
    expected = membership_scores(FAMILY, draws, unseen).quantile(torch.linspace(0, 1, 21, dtype=torch.float64))
    assert after["never_seen_quantiles"] == pytest.approx(expected.tolist())
    assert len(after["retained_quantiles"]) == 21


def test_without_never_seen_rows_nothing_is_compared() -> None:
    data = regression_rows(90, seed=70)
    draws = exact_draws(data, seed=72, draws=10)
    report = audit_membership(FAMILY, draws, draws, data[:30], data[30:], None)
    assert report.worst is None
    assert report.after.forgotten is None
    assert report.after.retained is None
    assert report.n_never_seen == 0
    assert len(report.after.forgotten_quantiles) == 21
    assert report.after.never_seen_quantiles == ()


def test_what_does_not_fit_is_refused() -> None:
    data = regression_rows(90, seed=80)
    draws = exact_draws(data, seed=82, draws=10)
    with pytest.raises(InvalidInput, match="same columns"):
        audit_membership(FAMILY, draws, draws, data[:0], data, None)
    with pytest.raises(InvalidInput, match="same columns"):
        audit_membership(FAMILY, draws, draws, data[:3], data[3:], data[:, 1:])
    with pytest.raises(InvalidInput, match="draws have shape"):
        audit_membership(FAMILY, draws[:, 1:], draws, data[:3], data[3:], None)
    with pytest.raises(NumericalFailure, match="NaN"):
        audit_membership(FAMILY, draws * math.nan, draws, data[:3], data[3:], None)
