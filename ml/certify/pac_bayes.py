"""How well the model that forgot still generalises: PAC-Bayes bounds of its risk before and after.

With probability 1-δ over n independent rows, for every distribution Q of θ at once, and a prior fixed before the rows
were seen (D. McAllester, 2003; the lemma behind both theorems of the BIF paper)

    R(Q) ≤ R̂(Q) + √((KL(Q ‖ prior) + log(1/δ) + log n + 2) / (2n - 1))

The theorems put Gaussians for Q and bound KL from above by norms; here it is exact, and the prior is N(0, prior_std² I)

    variational   Q = N(μ, diag σ²)         KL = ½ Σ [(μ² + σ²)/prior_std² - 1 - 2 log(σ/prior_std)]
    sample sets   Q = N(θ, (nJ)⁻¹)          the same with the eigenvalues of (nJ)⁻¹ for σ²

After forgetting, the paper still takes R̂ and n from all rows, the forgotten ones among them. Here both are of what is
retained, which Lethe still has. R̂(Q) is an expectation over θ ~ Q: it is drawn, and a part of δ pays for that.

The loss has to lie in [0, 1]: it is the 0-1 error of a classifier. The squared error of a regression and the negative
log-density of a mixture are unbounded, so that for these no such bound is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

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

_SHARE_OF_DRAWING = 0.2  # of δ
_ROWS_PER_DRAW = 4096
_BISECTIONS = 60

Gaussian = MeanFieldGaussian | Laplace


@dataclass(frozen=True)
class Classifier:
    """A likelihood whose rows end in a label 0..classes-1, with θ ~ N(0, prior_std² I)."""

    likelihood: Likelihood
    classes: int
    prior_std: float

    def errors(self, theta: Tensor, data: Tensor) -> Tensor:
        """Whether the likeliest label is another than the row's, or as likely: (n,).

        A label with more than ½ is the likeliest, one with less than 1/classes is not. Only rows between these, of
        which two classes have none, are asked for the other labels.
        """
        own = self.likelihood.log_likelihood(theta, data)
        wrong = ~(own > -math.log(2))  # so that NaN is wrong
        unsure = wrong & (own >= -math.log(self.classes))
        if self.classes > 2 and bool(unsure.any()):
            wrong[unsure] = self._best_rival(theta, data[unsure]) >= own[unsure]
        return wrong

    def _best_rival(self, theta: Tensor, rows: Tensor) -> Tensor:
        labels, relabelled = rows[:, -1], rows.clone()
        best = torch.full_like(labels, -math.inf)
        for label in range(self.classes):
            relabelled[:, -1] = label
            scores = self.likelihood.log_likelihood(theta, relabelled)
            best = torch.where(labels == label, best, torch.maximum(best, scores))
        return best


@dataclass(frozen=True)
class RiskBound:
    """With probability 1-δ the error rate on new rows is at most `bound`.

    `risk` is the mean over the draws, `risk_limit` what its expectation stays below.
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
        """No error rate is above 1: such a bound says nothing."""
        return self.bound >= 1


@dataclass(frozen=True)
class PacBayes:
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
    draws: int = 1000,
    delta: float = 0.05,
    rows_per_draw: int = _ROWS_PER_DRAW,
) -> RiskBound:
    """For `before` pass all rows and the posterior trained on them, for `after` the retained and the processed one."""
    classifier.likelihood.check_data(data)
    kl = prior_kl(posterior, classifier.prior_std)
    risk = _gibbs_risk(classifier, posterior, data, seed, draws, rows_per_draw)
    limit = largest_mean(risk, draws, _SHARE_OF_DRAWING * delta)
    bound = mcallester(limit, kl, len(data), (1 - _SHARE_OF_DRAWING) * delta)
    return RiskBound(risk, limit, kl, len(data), draws, delta, bound)


def mcallester(risk: float, kl: float, rows: int, delta: float) -> float:
    """The bound of the head of this file, or 1."""
    if not (0 <= risk <= 1 and kl >= 0 and rows >= 1 and 0 < delta < 1):
        raise InvalidInput(
            f"risk {risk}, kl {kl}, rows {rows}, delta {delta}: pass a risk from 0 to 1, a divergence of at least 0, "
            "one row or more, and a delta between 0 and 1"
        )
    return min(1.0, risk + math.sqrt((kl - math.log(delta) + math.log(rows) + 2) / (2 * rows - 1)))


def prior_kl(posterior: Gaussian, prior_std: float) -> float:
    """KL(Q ‖ N(0, prior_std² I)). The prior looks the same from every side, so Q may be turned until it is diagonal."""
    if isinstance(posterior, MeanFieldGaussian):
        mean, std = posterior.mean, posterior.std
    else:
        mean, std = posterior.mode, torch.linalg.eigvalsh(posterior.hessian).rsqrt()
    kl = float(gaussian_kl(mean, std, torch.full_like(std, prior_std)).sum())
    if not math.isfinite(kl):
        raise NumericalFailure("the precision of the Gaussian is not positive definite: take it at a mode")
    return kl


def largest_mean(mean: float, draws: int, delta: float) -> float:
    """The largest m with draws·kl(mean ‖ m) ≤ log(1/δ), kl between coins.

    With probability 1-δ the expectation of independent values in [0, 1] with this mean is no larger (H. Chernoff;
    W. Hoeffding, 1963).
    """
    low, high = mean, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if draws * _coin_kl(mean, middle) > -math.log(delta) else (middle, high)
    return high


def _coin_kl(p: float, q: float) -> float:
    if q == 1:
        return 0.0 if p == 1 else math.inf
    return sum(a * math.log(a / b) for a, b in ((p, q), (1 - p, 1 - q)) if a > 0)


def _gibbs_risk(
    classifier: Classifier, posterior: Gaussian, data: Tensor, seed: int, draws: int, rows_per_draw: int
) -> float:
    """mean_t of the error rate of θ_t ~ Q on all rows, or on rows picked for it alone: independent and unbiased."""
    generator = torch.Generator().manual_seed(seed)
    parameters, theta_of = _draw_from(posterior)
    total = 0.0
    for _ in range(draws):
        noise = torch.randn(parameters, generator=generator, dtype=torch.float64)
        theta = theta_of(noise.to(data.device)).to(data.dtype)
        rows = data
        if len(data) > rows_per_draw:
            rows = data[torch.randint(len(data), (rows_per_draw,), generator=generator).to(data.device)]
        total += float(classifier.errors(theta, rows).double().mean())
    return total / draws


def _draw_from(posterior: Gaussian) -> tuple[int, Callable[[Tensor], Tensor]]:
    """How much noise a draw takes, and the draw it makes."""
    if isinstance(posterior, MeanFieldGaussian):
        mean, std = posterior.mean.flatten(), posterior.std.flatten()
        return len(mean), lambda noise: mean + std * noise
    root = torch.linalg.cholesky(posterior.hessian).T
    return len(
        root
    ), lambda noise: posterior.mode + torch.linalg.solve_triangular(root, noise.unsqueeze(1), upper=True).squeeze(1)
