from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, MultivariateNormal, Normal, kl_divergence

from ml.certify.pac_bayes import (
    Classifier,
    PacBayes,
    RiskBound,
    bernoulli_kl,
    bound_risk,
    chernoff_limit,
    mcallester_bound,
    prior_kl,
)
from ml.errors import InvalidInput, NumericalFailure
from ml.inference.laplace import Laplace
from ml.models.logistic import LogisticRegression
from ml.models.mlp import MLP
from ml.models.softmax import SoftmaxRegression
from ml.posteriors.mean_field import MeanFieldGaussian


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def binomial(trials: int, p: float) -> Tensor:
    """Probability of each number of successes."""
    k = torch.arange(trials + 1, dtype=torch.float64)
    log_coefficients = math.lgamma(trials + 1) - torch.lgamma(k + 1) - torch.lgamma(trials - k + 1)
    return (log_coefficients + k * math.log(p) + (trials - k) * math.log1p(-p)).exp()


def labelled(features: Tensor, labels: Tensor) -> Tensor:
    return torch.cat([features, labels.double().unsqueeze(1)], 1)


def mean_field(seed: int, size: int = 5) -> MeanFieldGaussian:
    return MeanFieldGaussian(normal(size, seed=seed), 0.1 + normal(size, seed=seed + 1).abs())


def full(seed: int, size: int = 5) -> Laplace:
    mix = normal(size, size, seed=seed)
    return Laplace(normal(size, seed=seed + 1), mix @ mix.T + torch.eye(size, dtype=torch.float64))


@pytest.mark.parametrize("prior_std", [1.0, 0.15])
def test_the_divergence_from_the_prior_is_exact(prior_std: float) -> None:
    zero, width = torch.zeros(5, dtype=torch.float64), torch.full((5,), prior_std, dtype=torch.float64)
    q = mean_field(0)
    expected = kl_divergence(Normal(q.mean, q.std), Normal(zero, width)).sum()
    assert prior_kl(q, prior_std) == pytest.approx(float(expected), rel=1e-12)
    p = full(1)
    whole = MultivariateNormal(p.mode, precision_matrix=p.hessian)
    expected = kl_divergence(whole, MultivariateNormal(zero, torch.diag(width.square())))
    assert prior_kl(p, prior_std) == pytest.approx(float(expected), rel=1e-12)


def papers_term(c: float, d: int, log_n_times: int, n: int, delta: float) -> float:
    return math.sqrt((c + 2 * math.log(1 / delta) + log_n_times * math.log(n) - d + 4) / (4 * n - 2))


@pytest.mark.parametrize("parallel", [True, False])
def test_the_variational_theorem_is_this_bound_with_norms_for_the_divergence(parallel: bool) -> None:
    """They differ by ‖λ-Δ‖ ≤ ‖λ‖ + ‖Δ‖ only, which is an equality if Δ points against λ."""
    q, n, delta = mean_field(2), 400, 0.05
    influence = -0.01 * (q.flat() if parallel else normal(10, seed=51))
    processed = q.with_flat(q.flat() - influence)
    c = float((influence.norm() + q.flat().norm()) ** 2 - 2 * processed.std.log().sum())
    ours = mcallester_bound(0.1, prior_kl(processed, 1.0), n, delta)
    papers = 0.1 + papers_term(c, 5, 2, n, delta)
    assert ours == pytest.approx(papers, rel=1e-12) if parallel else ours < papers


@pytest.mark.parametrize("parallel", [True, False])
def test_the_theorem_of_sample_sets_is_this_bound_with_norms_for_the_divergence(parallel: bool) -> None:
    p, n, delta = full(4), 400, 0.05
    per_datum, influence = p.hessian, -0.01 * (p.mode if parallel else normal(5, seed=50))
    processed = Laplace(p.mode - influence, n * per_datum)
    c = float(
        (influence.norm() + p.mode.norm()) ** 2 + torch.linalg.inv(per_datum).trace() / n + torch.logdet(per_datum)
    )
    ours = mcallester_bound(0.1, prior_kl(processed, 1.0), n, delta)
    papers = 0.1 + papers_term(c, 5, 5 + 2, n, delta)
    assert ours == pytest.approx(papers, rel=1e-12) if parallel else ours < papers


def test_an_indefinite_precision_is_refused() -> None:
    saddle = Laplace(torch.zeros(2, dtype=torch.float64), torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64)))
    with pytest.raises(NumericalFailure, match="mode"):
        prior_kl(saddle, 1.0)


def test_a_bound_of_1_is_vacuous() -> None:
    assert mcallester_bound(0.1, 1e6, 100, 0.05) == 1.0
    assert RiskBound(0.1, 0.1, 1e6, 100, 10, 0.05, 1.0).vacuous
    assert not RiskBound(0.1, 0.1, 1.0, 100, 10, 0.05, 0.3).vacuous


@pytest.mark.parametrize(
    "arguments",
    [
        (-0.1, 1.0, 9, 0.05),
        (1.1, 1.0, 9, 0.05),
        (0.1, -1.0, 9, 0.05),
        (0.1, math.nan, 9, 0.05),
        (0.1, 1.0, 0, 0.05),
        (0, 1, 9, 1),
        (0, 1, 9, 0),
    ],
)
def test_impossible_arguments_are_refused(arguments: tuple[float, float, int, float]) -> None:
    with pytest.raises(InvalidInput, match="pass a risk"):
        mcallester_bound(*arguments)


@pytest.mark.parametrize(("risk", "kl"), [(0.0, 0.0), (0.25, 0.0), (0.25, 20.0), (1.0, 0.0)])
def test_the_bound_by_hand(risk: float, kl: float) -> None:
    """For n = 100 and δ = e⁻³: √((KL + 3 + log 100 + 2)/199) above the risk, at most 1."""
    expected = min(1.0, risk + ((kl + 5 + math.log(100)) / 199) ** 0.5)
    assert mcallester_bound(risk, kl, 100, math.exp(-3)) == pytest.approx(expected, rel=1e-12)


def test_the_bound_covers_the_best_of_very_many_coins_that_know_nothing() -> None:
    """Uniform prior over 10⁹ fair coins, Q on the luckiest in n = 50 rows: KL = log 10⁹ and the true risk is ½.

    Without the divergence the same formula is wrong every time, so the test is one of the divergence.
    """
    n, coins, delta = 50, 1e9, 0.05
    at_most = binomial(n, 0.5).cumsum(0)[:-1]
    luckiest = -torch.expm1(coins * torch.log1p(-at_most))  # P(fewest errors ≤ k)
    uniform = torch.rand(2000, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    risks = (torch.searchsorted(luckiest, uniform).double() / n).tolist()
    bounded = [mcallester_bound(risk, math.log(coins), n, delta) >= 0.5 for risk in risks]
    without_kl = [mcallester_bound(risk, 0.0, n, delta) >= 0.5 for risk in risks]
    assert sum(bounded) >= 0.95 * len(bounded)
    assert sum(without_kl) <= 0.05 * len(without_kl)


def test_the_limit_of_a_mean_may_be_1() -> None:
    """The divergence from every m < 1 is below log(1/δ), so that bisection reaches 1."""
    assert chernoff_limit(0.5, 1, 1e-30) == 1
    assert chernoff_limit(1.0, 50, 0.01) == 1


@pytest.mark.parametrize(("p", "q"), [(0.0, 0.0), (0.0, 0.3), (0.2, 0.3), (1.0, 0.3), (1.0, 1.0), (0.5, 1.0)])
def test_the_divergence_of_bernoulli_variables(p: float, q: float) -> None:
    expected = kl_divergence(Bernoulli(torch.tensor(p).double()), Bernoulli(torch.tensor(q).double()))
    assert bernoulli_kl(p, q) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("p", [0.001, 0.03, 0.3, 0.5, 0.97])
@pytest.mark.parametrize("draws", [1, 20, 1000])
def test_the_limit_of_a_mean_is_exceeded_with_probability_below_delta(p: float, draws: int) -> None:
    """Exactly, over every outcome of as many coins."""
    limits = [chernoff_limit(k / draws, draws, 0.01) for k in range(draws + 1)]
    chances = binomial(draws, p).tolist()
    assert sum(chances) == pytest.approx(1)
    assert sum(chance for chance, limit in zip(chances, limits, strict=True) if limit < p) <= 0.01
    assert limits == sorted(limits)
    assert limits[0] == pytest.approx(1 - 0.01 ** (1 / draws), abs=1e-12)
    assert limits[-1] == 1


def test_errors_of_two_classes_are_those_of_the_sign() -> None:
    family = LogisticRegression(dimensions=3, prior_std=1.0)
    features, theta = normal(500, 3, seed=7), normal(3, seed=8)
    labels = normal(500, seed=9) > 0
    wrong = Classifier(family, 2, 1.0).errors(theta, labelled(features, labels))
    assert torch.equal(wrong, (features @ theta > 0) != labels)
    assert 0 < int(wrong.sum()) < 500
    tied = Classifier(family, 2, 1.0).errors(torch.zeros_like(theta), labelled(features, labels))
    assert bool(tied.all())
    assert bool(Classifier(family, 2, 1.0).errors(math.nan * theta, labelled(features, labels)).all())


@pytest.mark.parametrize("scale", [0.1, 3.0], ids=["unsure", "sure"])
def test_errors_of_many_classes_are_those_of_the_likeliest(scale: float) -> None:
    softmax = SoftmaxRegression(dimensions=4, classes=7, prior_std=1.0, draws=4, seed=0)
    network = MLP(dimensions=4, hidden=6, classes=7)
    features, labels = normal(600, 4, seed=10), torch.arange(600) % 7
    data = labelled(features, labels)
    theta = scale * normal(28, seed=11)
    expected = (features @ theta.reshape(7, 4).T).argmax(1) != labels
    assert 0 < int(expected.sum()) < 600
    assert torch.equal(Classifier(softmax, 7, 1.0).errors(theta, data), expected)
    weights = scale * normal(network.parameter_count, seed=12)
    expected = network.outputs(weights, data).argmax(1) != labels
    assert 0 < int(expected.sum()) < 600
    assert torch.equal(Classifier(network, 7, 1.0).errors(weights, data), expected)


def test_a_tie_between_the_two_most_likely_of_three_labels_is_an_error() -> None:
    """Logits (1, 1, 0) give the probabilities 0.42, 0.42, 0.16: neither above ½ nor below a third."""
    softmax = SoftmaxRegression(dimensions=1, classes=3, prior_std=1.0, draws=4, seed=0)
    theta, ones = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64), torch.ones(3, 1, dtype=torch.float64)
    assert bool(Classifier(softmax, 3, 1.0).errors(theta, labelled(ones, torch.arange(3))).all())
    theta = torch.tensor([1.0, 0.9, 0.0], dtype=torch.float64)
    wrong = Classifier(softmax, 3, 1.0).errors(theta, labelled(ones, torch.arange(3)))
    assert wrong.tolist() == [False, True, True]


FLIPPED = 0.1
DIMENSIONS = 4


@dataclass(frozen=True)
class Toy:
    """x ~ N(0, I), y the sign of x₁, flipped for one row in ten: sign(θᵀx) errs with 0.1 + 0.8 angle(θ, e₁)/π."""

    rows: int

    @property
    def classifier(self) -> Classifier:
        return Classifier(LogisticRegression(DIMENSIONS, prior_std=1.0), 2, prior_std=1.0)

    def data(self, seed: int) -> Tensor:
        features = normal(self.rows, DIMENSIONS, seed=seed)
        flips = torch.rand(self.rows, generator=torch.Generator().manual_seed(seed + 1)) < FLIPPED
        return labelled(features, (features[:, 0] > 0) ^ flips)

    def overfitted(self, data: Tensor) -> MeanFieldGaussian:
        """Narrow, around the least-squares solution."""
        mean = torch.linalg.lstsq(data[:, :-1], 2 * data[:, -1:] - 1).solution.flatten()
        return MeanFieldGaussian(mean, torch.full_like(mean, 0.05))

    def true_risk(self, posterior: MeanFieldGaussian, seed: int) -> float:
        theta = posterior.mean + posterior.std * normal(4000, DIMENSIONS, seed=seed)
        angle = torch.acos(theta[:, 0] / theta.norm(dim=1))
        return float((FLIPPED + (1 - 2 * FLIPPED) * angle / math.pi).mean())


def test_the_true_risk_stays_below_the_bound_before_and_after_forgetting() -> None:
    toy, repetitions = Toy(rows=120), 40
    bounded, above_risk, informative = 0, 0, 0
    for repetition in range(repetitions):
        data = toy.data(seed=1000 + 2 * repetition)
        for rows in (data, data[:80]):
            posterior = toy.overfitted(rows)
            bound = bound_risk(toy.classifier, posterior, rows, seed=repetition, draws=50)
            assert bound.rows == len(rows)
            truth = toy.true_risk(posterior, seed=repetition)
            bounded += bound.bound >= truth
            above_risk += bound.risk >= truth
            informative += not bound.vacuous
    assert bounded >= 0.95 * 2 * repetitions
    assert above_risk <= 0.8 * 2 * repetitions  # the empirical risk alone is no bound
    assert informative == 2 * repetitions


@pytest.mark.parametrize("kind", ["mean field", "full"])
def test_the_drawn_risk_is_that_of_the_gaussian(kind: str) -> None:
    """For one row x with label 1, P(θᵀx ≤ 0) = Φ(-μᵀx / √(xᵀΣx))."""
    q, p, x = mean_field(13, DIMENSIONS), full(14, DIMENSIONS), normal(DIMENSIONS, seed=15)
    posterior = q if kind == "mean field" else p
    mean = q.mean if kind == "mean field" else p.mode
    covariance = torch.diag(q.std.square()) if kind == "mean field" else torch.linalg.inv(p.hessian)
    expected = 0.5 * math.erfc(float(mean.dot(x) / (x @ covariance @ x).sqrt()) / math.sqrt(2))
    assert 0.02 < expected < 0.98
    row = labelled(x.unsqueeze(0), torch.ones(1))
    bound = bound_risk(Toy(1).classifier, posterior, row, seed=16, draws=2000)
    assert bound.risk == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / 2000))
    assert bound.risk < bound.risk_limit == chernoff_limit(bound.risk, 2000, 0.01)


def test_rows_picked_for_each_draw_give_the_risk_of_all() -> None:
    toy = Toy(rows=20_000)
    data = toy.data(seed=17)
    posterior = toy.overfitted(data)
    bound = bound_risk(toy.classifier, posterior, data, seed=18, draws=60)
    thetas = posterior.mean + posterior.std * normal(200, DIMENSIONS, seed=19)
    expected = torch.stack([toy.classifier.errors(theta, data).double().mean() for theta in thetas]).mean()
    assert bound.rows == 20_000
    assert bound.risk == pytest.approx(float(expected), abs=0.005)


def test_the_same_seed_gives_the_same_bound_and_plain_json() -> None:
    toy = Toy(rows=60)
    data = toy.data(seed=20)
    posterior = toy.overfitted(data)
    before = bound_risk(toy.classifier, posterior, data, seed=21, draws=20)
    after = bound_risk(toy.classifier, posterior, data[:40], seed=21, draws=20)
    assert before == bound_risk(toy.classifier, posterior, data, seed=21, draws=20)
    assert (
        before.bound == mcallester_bound(before.risk_limit, before.kl, 60, 0.8 * 0.05) > before.risk_limit > before.risk
    )
    assert after.kl == before.kl
    assert after.risk != before.risk
    content = PacBayes(before, after).to_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["after"] == {**dataclasses.asdict(after), "vacuous": False}
