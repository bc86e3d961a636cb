"""PAC-Bayes bounds on the risk of a model before and after forgetting.

With probability 1-δ over n independent rows, for all distributions Q of θ simultaneously and a prior chosen before the
rows were seen (D. McAllester, 2003; the lemma behind both theorems of the BIF paper),

    R(Q) ≤ R̂(Q) + √((KL(Q ‖ prior) + log(1/δ) + log n + 2) / (2n - 1))

The theorems take Gaussians for Q and bound KL from above by norms. This module computes KL exactly, for the prior
N(0, prior_std² I):

    variational   Q = N(μ, diag σ²)         KL = ½ Σ [(μ² + σ²)/prior_std² - 1 - 2 log(σ/prior_std)]
    sample sets   Q = N(θ, (nJ)⁻¹)          the same with the eigenvalues of (nJ)⁻¹ for σ²

After forgetting, the paper still takes R̂ and n from all rows, including the forgotten ones. This module takes both from
the retained rows. R̂(Q) is an expectation over θ ~ Q and is estimated from draws, which uses up a part of δ.

The loss must lie in [0, 1], so it is the 0-1 error of a classifier. The squared error of a regression and the negative
log-density of a mixture are unbounded; for these families there is no bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from ml.certify.predictive import relabelled_log_likelihoods
from ml.errors import InvalidInput, NumericalFailure
from ml.inference.laplace import Laplace
from ml.models.likelihood import Likelihood
from ml.posteriors.mean_field import MeanFieldGaussian, gaussian_kl

NOT_PROVED = (
    "The risk bounds take the rows for independent draws of one distribution, a wish to be forgotten for independent "
    "of what the row holds, and the prior for chosen without the rows.",
    "They speak of a classifier that draws its parameters anew for each prediction; "
    "for a sample set, from the Gaussian that stands for it.",
    "Each of them holds with its own confidence, not both at once.",
)

_DRAWING_SHARE = 0.2  # of δ, for estimating R̂(Q) from draws
_ROWS_PER_DRAW = 4096
_BISECTIONS = 60

Gaussian = MeanFieldGaussian | Laplace


@dataclass(frozen=True)
class Classifier:
    """Likelihood of rows that end in a label 0..classes-1, with the prior θ ~ N(0, prior_std² I)."""

    likelihood: Likelihood
    classes: int
    prior_std: float

    def errors(self, theta: Tensor, data: Tensor) -> Tensor:
        """Return whether another label is at least as likely as the row's own: (n,).

        A label with a probability above ½ is the most likely one; a label below 1/classes is not. The other labels are
        evaluated only for the rows in between. With two classes there are none.
        """
        own = self.likelihood.log_likelihood(theta, data)
        wrong = ~(own > -math.log(2))  # negated so that NaN counts as an error
        undecided = wrong & (own >= -math.log(self.classes))
        if self.classes > 2 and bool(undecided.any()):
            wrong[undecided] = self._best_rival(theta, data[undecided]) >= own[undecided]
        return wrong

    def _best_rival(self, theta: Tensor, rows: Tensor) -> Tensor:
        """Return the largest log-likelihood of the labels other than the row's own."""
        scores = relabelled_log_likelihoods(self.likelihood, self.classes, theta, rows)
        return scores.scatter(1, rows[:, -1:].long(), -math.inf).amax(1)


@dataclass(frozen=True)
class RiskBound:
    """Bound on the error rate on new rows, which holds with probability 1-δ.

    `risk` is the mean error rate over the draws, `risk_limit` the upper confidence limit of its expectation.
    """

    risk: float
    risk_limit: float
    kl: float
    rows: int
    draws: int
    delta: float
    bound: float

    @property
    def vacuous(self) -> bool:
        """Whether the bound is 1 or more, which holds for every error rate."""
        return self.bound >= 1


@dataclass(frozen=True)
class PacBayes:
    """Risk bounds before and after forgetting."""

    before: RiskBound
    after: RiskBound

    def to_dict(self) -> dict[str, object]:
        sides = {"before": self.before, "after": self.after}
        return {name: {**asdict(side), "vacuous": side.vacuous} for name, side in sides.items()}


def bound_risk(
    classifier: Classifier,
    posterior: Gaussian,
    data: Tensor,
    seed: int,
    draws: int,
    delta: float = 0.05,
    rows_per_draw: int = _ROWS_PER_DRAW,
) -> RiskBound:
    """Bound the risk of a posterior by its error rate on `data`.

    Before forgetting, pass all rows and the posterior trained on them; after it, the retained rows and the processed
    posterior.
    """
    classifier.likelihood.check_data(data)
    kl = prior_kl(posterior, classifier.prior_std)
    risk = _gibbs_risk(classifier, posterior, data, seed, draws, rows_per_draw)
    limit = chernoff_limit(risk, draws, _DRAWING_SHARE * delta)
    bound = mcallester_bound(limit, kl, len(data), (1 - _DRAWING_SHARE) * delta)
    return RiskBound(risk, limit, kl, len(data), draws, delta, bound)


def mcallester_bound(risk: float, kl: float, rows: int, delta: float) -> float:
    """Return the bound given at the head of this module, or 1 if that is smaller."""
    if not (0 <= risk <= 1 and kl >= 0 and rows >= 1 and 0 < delta < 1):
        raise InvalidInput(
            f"risk {risk}, kl {kl}, rows {rows}, delta {delta}: pass a risk from 0 to 1, a divergence of at least 0, "
            "at least one row, and a delta between 0 and 1"
        )
    return min(1.0, risk + math.sqrt((kl - math.log(delta) + math.log(rows) + 2) / (2 * rows - 1)))


def prior_kl(posterior: Gaussian, prior_std: float) -> float:
    """Return KL(Q ‖ N(0, prior_std² I)).

    The prior is invariant under rotations, so a full Gaussian may be rotated until it is diagonal.
    """
    if isinstance(posterior, MeanFieldGaussian):
        mean, std = posterior.mean, posterior.std
    else:
        mean, std = posterior.mode, torch.linalg.eigvalsh(posterior.hessian).rsqrt()
    kl = float(gaussian_kl(mean, std, torch.full_like(std, prior_std)).sum())
    if not math.isfinite(kl):
        raise NumericalFailure("the precision of the Gaussian is not positive definite: evaluate it at a mode")
    return kl


def chernoff_limit(mean: float, draws: float, delta: float) -> float:
    """Return the largest m with draws·kl(mean ‖ m) ≤ log(1/δ), where kl is the divergence of Bernoulli variables.

    It is an upper confidence limit, at level 1-δ, for the expectation of independent values in [0, 1] with this mean
    (H. Chernoff; W. Hoeffding, 1963).
    """
    low, high = mean, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if draws * bernoulli_kl(mean, middle) > -math.log(delta) else (middle, high)
    return high


def bernoulli_kl(p: float, q: float) -> float:
    """Return the divergence between Bernoulli variables of means p and q."""
    if q == 1:
        return 0.0 if p == 1 else math.inf
    return sum(a * math.log(a / b) for a, b in ((p, q), (1 - p, 1 - q)) if a > 0)


def _gibbs_risk(
    classifier: Classifier, posterior: Gaussian, data: Tensor, seed: int, draws: int, rows_per_draw: int
) -> float:
    """Return the mean error rate of draws θ_t ~ Q.

    Each draw reads all rows, or its own random selection of them: the error rates are unbiased and independent.
    """
    generator = torch.Generator().manual_seed(seed)
    parameters, to_theta = _sampler(posterior)
    total = 0.0
    for _ in range(draws):
        noise = torch.randn(parameters, generator=generator, dtype=torch.float64)
        theta = to_theta(noise.to(data.device)).to(data.dtype)
        rows = data
        if len(data) > rows_per_draw:
            rows = data[torch.randint(len(data), (rows_per_draw,), generator=generator).to(data.device)]
        total += float(classifier.errors(theta, rows).double().mean())
    return total / draws


def _sampler(posterior: Gaussian) -> tuple[int, Callable[[Tensor], Tensor]]:
    """Return the length of the standard normal noise behind a draw, and the map from noise to draw."""
    if isinstance(posterior, MeanFieldGaussian):
        mean, std = posterior.mean.flatten(), posterior.std.flatten()
        return len(mean), lambda noise: mean + std * noise
    mode, root = posterior.mode, torch.linalg.cholesky(posterior.hessian).T

    def draw(noise: Tensor) -> Tensor:
        offset: Tensor = torch.linalg.solve_triangular(root, noise.unsqueeze(1), upper=True).squeeze(1)
        return mode + offset

    return len(mode), draw
