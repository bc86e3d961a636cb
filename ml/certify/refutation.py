"""Refutation of a certified bound by what two models say of the same rows (data processing).

Whatever is computed from θ alone cannot tell two posteriors farther apart than they are. For every function f of θ with
values in [0, 1], in particular a class probability f(θ) = p(y | x, θ) or the indicator of an event,

    kl(E_p f ‖ E_q f) ≤ KL(p ‖ q)        kl of Bernoulli variables

Here f is an event: the log-likelihood of one row, or of all rows together, exceeds a threshold c. Events do at least as
well as predictions: E f = ∫ P(f > c) dc over [0, 1], and kl is jointly convex, so kl(E_p f ‖ E_q f) is at most the
largest kl(P(f > c) ‖ Q(f > c)) over c.

Row and threshold are chosen on one half of the draws, and the event's frequencies are taken from the other half: one
event is tested, however many there were to choose from. Both get a one-sided confidence limit (H. Chernoff), and the kl
of the limits is a lower confidence limit of KL(p ‖ q). If it is above a certified bound of it, the bound is refuted.
The limits are exact for independent draws. Draws of a chain, or with weights, count as the number of independent ones
that they are worth, which is an estimate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from ml.certify.pac_bayes import bernoulli_kl, chernoff_limit
from ml.certify.predictive import even_draws
from ml.errors import InvalidInput
from ml.inference.autocorrelation import estimate_mean
from ml.models.likelihood import Likelihood
from ml.models.network import Network
from ml.models.potential import ROWS_AT_ONCE
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.posteriors.sample_set import SampleSet
from vocabulary.bound import Bound
from vocabulary.posterior_kinds import Reading

GAUSSIAN_DRAWS = 4096
_THRESHOLDS = 19  # per row, at evenly spaced quantiles


@dataclass(frozen=True)
class Divergence:
    """Lower confidence limit of KL(p ‖ q) in nats, and the event that shows it.

    `share_p` and `share_q` are the event's frequencies: the log-likelihood of the row at position `row`, or of all rows
    where it is None, exceeds `threshold`.
    """

    at_least: float
    confidence: float
    row: int | None
    threshold: float
    share_p: float
    share_q: float


@dataclass(frozen=True, eq=False)
class ScoredDraws:
    """Log-likelihoods of rows under draws, those of all rows together last: (chains, draws, rows + 1).

    `weights` (chains, draws) have the mean 1. Independent draws form two chains.
    """

    scores: Tensor
    weights: Tensor

    def halves(self) -> tuple[ScoredDraws, ScoredDraws]:
        return ScoredDraws(self.scores[::2], self.weights[::2]), ScoredDraws(self.scores[1::2], self.weights[1::2])

    def shares(self, thresholds: Tensor) -> Tensor:
        """Return how often each score exceeds its threshold (rows + 1,)."""
        return (self.weights.unsqueeze(2) * (self.scores > thresholds)).mean((0, 1)) / self.weights.mean()

    def effective(self, column: int, threshold: float) -> float:
        """Return the number of independent draws that the frequency of an event, and the score itself, are worth."""
        scores = self.scores[..., [column]]
        series = torch.cat([scores, (scores > threshold).double()], 2)
        estimate = estimate_mean(series, self.weights / self.weights.mean())
        return float(estimate.effective[~estimate.effective.isnan()].min())


def challenge(
    likelihood: Likelihood,
    bound: Bound,
    processed: MeanFieldGaussian | SampleSet,
    reference: MeanFieldGaussian | SampleSet,
    rows: Tensor,
    confidence: float = 0.99,
    draws: int = GAUSSIAN_DRAWS,
    seed: int = 0,
) -> Divergence:
    """Measure the divergence that a certificate bounds. It is refuted if `at_least` is above its epsilon.

    `processed` is the published posterior, `reference` one that was trained on the retained rows alone. `rows` are any
    rows; those that were forgotten show most. Of Gaussians so many `draws` are made; all of a sample set are read. The
    smallest divergence that can be seen falls with their number. A true bound is refuted with a probability of at most
    1 - `confidence`.
    """
    _check_comparable(likelihood, bound, processed)
    reading: Reading = getattr(bound.constants, "reading", None) or "draws"
    of_processed, of_reference = (
        score_draws(likelihood, posterior, rows, reading, draws, seed) for posterior in (processed, reference)
    )
    if reading == "weighted draws":
        return bound_divergence(of_reference, of_processed, confidence)
    return bound_divergence(of_processed, of_reference, confidence)


def score_draws(
    likelihood: Likelihood,
    posterior: MeanFieldGaussian | SampleSet,
    rows: Tensor,
    reading: Reading = "draws",
    draws: int = GAUSSIAN_DRAWS,
    seed: int = 0,
) -> ScoredDraws:
    """Score rows under all draws of a sample set, or under independent draws of a Gaussian."""
    likelihood.check_data(rows)
    if isinstance(posterior, SampleSet):
        thetas, chain = posterior.samples, posterior.chain
        weights = posterior.weights if reading == "weighted draws" else torch.ones_like(posterior.weights)
    else:
        thetas = even_draws(posterior, draws, seed, "draws")
        chain, weights = torch.arange(draws) % 2, torch.ones(draws, dtype=torch.float64)
    score = vmap(likelihood.log_likelihood, (0, None), chunk_size=max(1, ROWS_AT_ONCE // len(rows)))
    with torch.no_grad():
        scores = score(thetas.to(rows.dtype), rows).double()
    scores = torch.cat([scores, scores.sum(1, keepdim=True)], 1)
    return ScoredDraws(_by_chain(scores, chain), _by_chain(weights / weights.mean(), chain))


def bound_divergence(p: ScoredDraws, q: ScoredDraws, confidence: float = 0.99) -> Divergence:
    """Return a lower confidence limit of KL(p ‖ q)."""
    (p_choice, p_test), (q_choice, q_test) = p.halves(), q.halves()
    column, threshold = _choose_event(p_choice, q_choice)
    share_p, share_q = (float(draws.shares(torch.tensor(threshold))[column]) for draws in (p_test, q_test))
    effective_p, effective_q = (draws.effective(column, threshold) for draws in (p_test, q_test))
    delta = (1 - confidence) / 2  # for each side
    high, low = (share_p, share_q) if share_p >= share_q else (1 - share_p, 1 - share_q)
    limit_p = 1 - chernoff_limit(1 - high, effective_p, delta)
    limit_q = chernoff_limit(low, effective_q, delta)
    return Divergence(
        at_least=bernoulli_kl(limit_p, limit_q) if limit_p > limit_q else 0.0,
        confidence=confidence,
        row=column if column < p.scores.shape[2] - 1 else None,
        threshold=threshold,
        share_p=share_p,
        share_q=share_q,
    )


def _choose_event(p: ScoredDraws, q: ScoredDraws) -> tuple[int, float]:
    """Return column and threshold of the event whose frequencies differ most, half a draw added to each outcome."""
    pooled = torch.cat([p.scores.flatten(0, 1), q.scores.flatten(0, 1)])
    levels = torch.linspace(0, len(pooled) - 1, _THRESHOLDS + 2).long()[1:-1]
    thresholds = pooled.sort(0).values[levels]  # (thresholds, columns)
    divergences = torch.stack([_smoothed_kl(p, q, row) for row in thresholds])
    level, column = divmod(int(divergences.argmax()), divergences.shape[1])
    return column, float(thresholds[level, column])


def _smoothed_kl(p: ScoredDraws, q: ScoredDraws, thresholds: Tensor) -> Tensor:
    share_p, share_q = (
        (draws.shares(thresholds) * draws.weights.numel() + 0.5) / (draws.weights.numel() + 1) for draws in (p, q)
    )
    return share_p * (share_p / share_q).log() + (1 - share_p) * ((1 - share_p) / (1 - share_q)).log()


def _by_chain(values: Tensor, chain: Tensor) -> Tensor:
    """Return the values of the draws as (chains, draws, …), with at least two chains of the length of the shortest."""
    chains = [values[chain == number] for number in sorted(set(chain.tolist()))]
    if len(chains) == 1:
        chains = list(torch.split(chains[0], math.ceil(len(values) / 2)))
    length = min(len(chain) for chain in chains)
    return torch.stack([chain[:length] for chain in chains])


def _check_comparable(likelihood: Likelihood, bound: Bound, processed: MeanFieldGaussian | SampleSet) -> None:
    if bound.level == "retrained":
        raise InvalidInput("the certificate says retrained: the posterior is its own reference, and nothing is bounded")
    if isinstance(likelihood, Network) and isinstance(processed, MeanFieldGaussian):
        raise InvalidInput(
            "epsilon is an excess over a minimum, not a divergence from another model: compare the predictions of both"
        )
    if bound.reference_kind == "stored draws":
        raise InvalidInput(
            "the reference is the law of the stored draws without the rows, not a posterior that could be trained: "
            "compare the predictions of both"
        )
