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
from tests.ml.exact_posterior import exact_posterior

DIMENSIONS = 30
FAMILY = LinearRegression(DIMENSIONS, noise_std=1.0, prior_std=3.0)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def regression_rows(rows: int, seed: int) -> Tensor:
    """Rows of one true regression for all seeds."""
    features = normal(rows, DIMENSIONS, seed=seed)
    target = features @ normal(DIMENSIONS, seed=0) + normal(rows, seed=seed + 1)
    return torch.cat([features, target.unsqueeze(1)], 1)


def exact_draws(data: Tensor, seed: int, draws: int = 200) -> Tensor:
    mean, covariance = exact_posterior(FAMILY, data)
    exact: Tensor = mean + normal(draws, DIMENSIONS, seed=seed) @ torch.linalg.cholesky(covariance).T
    return exact


def slow_auc(members: Tensor, others: Tensor) -> float:
    wins = (members.unsqueeze(1) > others).double() + 0.5 * (members.unsqueeze(1) == others).double()
    return float(wins.mean())


def phi(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


@pytest.mark.parametrize("gap", [-1.0, 0.0, 0.3, 1.0, 2.0])
def test_the_auc_of_two_gaussians_has_a_closed_form(gap: float) -> None:
    result = attack(gap + normal(20_000, seed=1), normal(20_000, seed=2))
    assert result.auc == pytest.approx(phi(gap / math.sqrt(2)), abs=3 * result.error)
    assert 0 < result.error < 0.004
    best = 2 * phi(abs(gap) / 2) - 1  # at the threshold half-way
    above, below = (best, 0.0) if gap >= 0 else (0.0, best)
    assert result.advantage_above == pytest.approx(above, abs=result.chance)
    assert result.advantage_below == pytest.approx(below, abs=result.chance)
    assert result.chance == pytest.approx(math.sqrt(math.log(20) / 20_000))


def test_ties_count_half() -> None:
    members, others = (normal(50, seed=3) * 2).round(), (normal(70, seed=4) * 2).round()
    assert len({*members.tolist(), *others.tolist()}) < 20
    assert attack(members, others).auc == pytest.approx(slow_auc(members, others), rel=1e-12)
    alike = attack(torch.zeros(5, dtype=torch.float64), torch.zeros(9, dtype=torch.float64))
    assert (alike.auc, alike.error, alike.advantage_above, alike.advantage_below) == (0.5, 0.0, 0.0, 0.0)


def test_groups_that_do_not_overlap() -> None:
    low, high = torch.arange(5.0).double(), torch.arange(10.0, 20.0).double()
    above, below = attack(high, low), attack(low, high)
    assert (above.auc, above.advantage_above, above.advantage_below) == (1.0, 1.0, 0.0)
    assert (below.auc, below.advantage_above, below.advantage_below) == (0.0, 0.0, 1.0)


def test_two_pairs_of_scores_by_hand() -> None:
    """Of 0 and 2 against 1 and 3 one pair in four is won. Both groups have the AUC components 0 and ½."""
    result = attack(torch.tensor([0.0, 2.0]).double(), torch.tensor([3.0, 1.0]).double())
    assert result.auc == 0.25
    assert result.error == pytest.approx(math.sqrt(0.125 / 2 + 0.125 / 2))
    assert (result.advantage_above, result.advantage_below) == (0.0, 0.5)
    assert result.chance == 1.0


def test_the_chance_of_two_groups_of_different_size() -> None:
    result = attack(torch.zeros(10, dtype=torch.float64), torch.zeros(40, dtype=torch.float64))
    assert result.chance == pytest.approx(math.sqrt((1 / 10 + 1 / 40) * math.log(20) / 2))


@pytest.mark.parametrize(("members", "others"), [(40, 300), (100, 100)])
def test_two_standard_errors_cover_the_truth_in_95_percent(members: int, others: int) -> None:
    """Groups of unequal width, for which the error under the null hypothesis would be wrong."""
    truth = phi(1 / math.sqrt(1 + 0.5**2))
    results = [attack(1 + 0.5 * normal(members, seed=s), normal(others, seed=10_000 + s)) for s in range(1000)]
    covered = sum(abs(result.auc - truth) <= 1.96 * result.error for result in results) / len(results)
    assert 0.92 <= covered <= 0.97


def test_permuted_labels_cannot_be_attacked() -> None:
    pooled, generator = torch.cat([3 + normal(80, seed=5), normal(120, seed=6)]), torch.Generator().manual_seed(7)
    assert attack(pooled[:80], pooled[80:]).auc > 0.95
    results = []
    for _ in range(400):
        mixed = pooled[torch.randperm(200, generator=generator)]
        results.append(attack(mixed[:80], mixed[80:]))
    assert sum(result.auc for result in results) / len(results) == pytest.approx(0.5, abs=0.01)
    assert sum(abs(result.auc - 0.5) <= 1.96 * result.error for result in results) >= 0.92 * len(results)
    assert sum(result.advantage_above <= result.chance for result in results) >= 0.93 * len(results)
    assert sum(result.advantage_below <= result.chance for result in results) >= 0.93 * len(results)


def test_the_score_is_the_log_of_the_mean_likelihood() -> None:
    rows = regression_rows(2500, seed=8)
    draws = exact_draws(rows[:60], seed=9, draws=7)
    expected = torch.stack([FAMILY.log_likelihood(theta, rows) for theta in draws]).exp().mean(0).log()
    assert torch.allclose(membership_scores(FAMILY, draws, rows), expected, rtol=1e-10, atol=0)
    assert torch.allclose(membership_scores(FAMILY, draws[:1], rows), FAMILY.log_likelihood(draws[0], rows))
    far = rows.clone()
    far[:, -1] += 1e4  # the likelihoods underflow in float64, the scores do not
    assert bool(torch.isfinite(membership_scores(FAMILY, draws, far)).all())


def test_networks_are_scored_in_the_precision_of_their_rows() -> None:
    network = MLP(dimensions=3, hidden=4, classes=2)
    rows = torch.cat([normal(50, 3, seed=10), (torch.arange(50) % 2).double().unsqueeze(1)], 1)
    draws = normal(5, network.parameter_count, seed=11)
    single = membership_scores(network, draws, rows.float())
    assert single.dtype == torch.float64
    assert torch.allclose(single, membership_scores(network, draws, rows), atol=1e-5)


def test_an_overfitted_model_reveals_members_until_they_are_forgotten_exactly() -> None:
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


def test_after_exact_forgetting_the_attack_guesses_on_average() -> None:
    areas = []
    for repetition in range(30):
        data = regression_rows(90, seed=1000 + 10 * repetition)
        unseen = regression_rows(300, seed=1005 + 10 * repetition)
        after = exact_draws(data[40:], seed=repetition, draws=50)
        report = audit_membership(FAMILY, after, after, data[:40], data[40:], unseen)
        assert report.after.forgotten is not None
        areas.append(report.after.forgotten.auc)
    aucs = torch.tensor(areas)
    assert float(aucs.mean()) == pytest.approx(0.5, abs=3 * float(aucs.std()) / math.sqrt(30))
    assert float(aucs.std()) < 0.08


def test_the_worst_example_is_the_row_that_was_not_forgotten() -> None:
    """A row that training still reads, among others that are truly forgotten."""
    data, unseen = regression_rows(60, seed=30), regression_rows(999, seed=32)
    data[7, :-1] *= 30
    data[7, -1] = data[7, :-1].sum()
    draws = exact_draws(data[7:], seed=34)
    forgotten_scores, others = membership_scores(FAMILY, draws, data[:8]), membership_scores(FAMILY, draws, unseen)
    report = audit_membership(FAMILY, exact_draws(data, seed=33), draws, data[:8], data[8:], unseen)
    assert report.worst is not None
    assert report.worst.position == int(forgotten_scores.argmax()) == 7
    assert report.worst.p_value == pytest.approx((1 + int((others >= forgotten_scores.max()).sum())) / 1000)
    assert report.worst.adjusted == min(1.0, 8 * report.worst.p_value)


def test_p_values_of_a_row_that_was_not_trained_on_are_uniform() -> None:
    """Bonferroni's are below 0.05 in at most 5 % of the groups, here of 5 rows."""
    draws = exact_draws(regression_rows(90, seed=40), seed=41, draws=3)
    adjusted_values, single_values = [], []
    for repetition in range(150):
        rows = regression_rows(104, seed=5000 + 2 * repetition)
        report = audit_membership(FAMILY, draws, draws, rows[:5], rows[:1], rows[5:])
        assert report.worst is not None
        adjusted_values.append(report.worst.adjusted)
        alone = audit_membership(FAMILY, draws, draws, rows[:1], rows[:1], rows[5:])
        assert alone.worst is not None
        single_values.append(alone.worst.p_value)
    assert sum(p <= 0.05 for p in adjusted_values) <= 0.09 * len(adjusted_values)
    assert sum(single_values) / len(single_values) == pytest.approx(0.505, abs=0.06)
    assert 0.02 <= sum(p <= 0.1 for p in single_values) / len(single_values) <= 0.16


def test_large_groups_are_sampled_by_the_seed() -> None:
    data, unseen = regression_rows(6000, seed=50), regression_rows(5000, seed=52)
    draws = exact_draws(data, seed=54, draws=3)
    report = audit_membership(FAMILY, draws, draws, data[:30], data[30:], unseen, seed=1)
    assert (report.n_forgotten, report.n_retained, report.n_never_seen) == (30, 4096, 4096)
    assert report == audit_membership(FAMILY, draws, draws, data[:30], data[30:], unseen, seed=1)
    assert report != audit_membership(FAMILY, draws, draws, data[:30], data[30:], unseen, seed=2)


def test_the_report_is_plain_json_and_holds_quantiles_instead_of_rows() -> None:
    data, unseen = regression_rows(90, seed=60), regression_rows(50, seed=62)
    draws = exact_draws(data, seed=64, draws=10)
    report = audit_membership(FAMILY, draws, draws, data[:1], data[1:], unseen)
    assert (report.n_forgotten, report.n_retained, report.n_never_seen) == (1, 89, 50)
    content = report.to_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    after = content["after"]
    assert isinstance(after, dict)
    assert after["forgotten"]["error"] is None  # a single row has no standard error
    assert after["forgotten_quantiles"] == []
    expected = membership_scores(FAMILY, draws, unseen).quantile(torch.linspace(0, 1, 21, dtype=torch.float64))
    assert after["never_seen_quantiles"] == pytest.approx(expected.tolist())
    assert len(after["retained_quantiles"]) == 21


def test_one_never_seen_row_is_enough_for_an_attack() -> None:
    data, unseen = regression_rows(90, seed=70), regression_rows(1, seed=74)
    draws = exact_draws(data, seed=72, draws=10)
    report = audit_membership(FAMILY, draws, draws, data[:30], data[30:], unseen)
    assert report.worst is not None
    assert report.worst.p_value == 0.5  # the best of 30 forgotten rows scores above the only other one
    assert report.worst.adjusted == 1.0
    assert report.after.forgotten is not None
    assert math.isnan(report.after.forgotten.error)


def test_groups_below_the_number_of_quantiles_have_none() -> None:
    data = regression_rows(90, seed=70)
    draws = exact_draws(data, seed=72, draws=10)
    after = audit_membership(FAMILY, draws, draws, data[:20], data[20:41], None).after
    assert (len(after.forgotten_quantiles), len(after.retained_quantiles)) == (0, 21)


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


def test_invalid_input_is_refused() -> None:
    data = regression_rows(90, seed=80)
    draws = exact_draws(data, seed=82, draws=10)
    with pytest.raises(InvalidInput, match="same columns"):
        audit_membership(FAMILY, draws, draws, data[:0], data, None)
    with pytest.raises(InvalidInput, match="same columns"):
        audit_membership(FAMILY, draws, draws, data[:3], data[3:], data[:, 1:])
    with pytest.raises(InvalidInput, match="draws have shape"):
        audit_membership(FAMILY, draws[:, 1:], draws, data[:3], data[3:], None)
    with pytest.raises(InvalidInput, match="draws have shape"):
        audit_membership(FAMILY, draws[:0], draws, data[:3], data[3:], None)
    with pytest.raises(NumericalFailure, match="NaN"):
        audit_membership(FAMILY, draws * math.nan, draws, data[:3], data[3:], None)
