"""Effects of forgetting that a certificate reports beside its bound: release, generalisation and membership attacks.

They are additional evidence only: they never raise a certificate's level or satisfy a policy.
"""

from __future__ import annotations

import contextlib
import functools
import math
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ml.certify.membership import MembershipReport, audit_membership
from ml.certify.pac_bayes import NOT_PROVED, Classifier, Gaussian, PacBayes, RiskBound, bound_risk
from ml.certify.release import Release, bound_advantages
from ml.errors import NumericalFailure
from ml.forgetting.retained import retained_rows
from ml.inference.laplace import fit_laplace
from ml.models.likelihood import Likelihood
from ml.models.network import Network
from ml.models.potential import Potential
from ml.posteriors.ensemble import Ensemble
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.posteriors.sample_set import SampleSet
from vocabulary.posterior_kinds import Reading

_DRAWS = 64  # over which membership scores are averaged
_RISK_DRAWS = 200
# Evaluating a row is far more expensive for a network than for a regression. Fewer draws make the attack's scores
# noisier, equally for all groups. Fewer rows per draw keep each draw's error rate unbiased and independent of the
# others, which is all the risk bound requires.
_NETWORK_DRAWS = 16
_NETWORK_ROWS_PER_DRAW = 256


@runtime_checkable
class ClassifierFamily(Likelihood, Protocol):
    """Family whose rows end in a label, so that it has a 0-1 risk to bound."""

    prior_std: float

    @property
    def classes(self) -> int: ...


@dataclass(frozen=True)
class Effects:
    """Effects of one forgetting: advantages from released draws, risk bounds, membership attacks."""

    release: tuple[Release, ...]
    """Empty if no divergence is known."""
    pac_bayes: PacBayes | None
    """None for a family that is not a classifier, whose loss is unbounded, for an ensemble, whose members are points
    and infinitely far from the prior, and where rounding defeats the bound."""
    membership: MembershipReport

    def to_dict(self) -> dict[str, Any]:
        """Return the effects as JSON values."""
        return {
            "release": [asdict(release) for release in self.release],
            "pac_bayes": self.pac_bayes and {**self.pac_bayes.to_dict(), "not_proved": list(NOT_PROVED)},
            "membership": self.membership.to_dict(),
        }


def measure_effects(
    family: Likelihood,
    before: MeanFieldGaussian | SampleSet | Ensemble,
    after: MeanFieldGaussian | SampleSet | Ensemble,
    data: Tensor,
    forgotten: Tensor,
    epsilon: float,
    never_seen: Tensor | None = None,
    seed: int = 0,
    reading: Reading = "draws",
) -> Effects:
    """Measure what forgetting the rows at positions `forgotten` did, given a certified divergence of `epsilon`.

    `reading` says how the samples of a sample set have to be read for that divergence to hold.
    """
    retained = retained_rows(data, forgotten)
    risks = None
    if isinstance(family, ClassifierFamily) and not isinstance(before, Ensemble) and not isinstance(after, Ensemble):
        bound = functools.partial(_bound_risk, family, seed=seed)
        with contextlib.suppress(NumericalFailure):  # evidence beside the bound must not keep anybody from forgetting
            risks = PacBayes(bound(before, data), bound(after, retained))
    draws = _NETWORK_DRAWS if isinstance(family, Network) else _DRAWS
    draws_before, draws_after = (_draw(posterior, seed, draws, reading) for posterior in (before, after))
    membership = audit_membership(family, draws_before, draws_after, data[forgotten], retained, never_seen, seed)
    return Effects(_release(family, epsilon, reading), risks, membership)


@dataclass(frozen=True)
class NetworkClassifier(Classifier):
    """Classifier that finds the most likely label in one forward pass."""

    likelihood: Network

    def errors(self, theta: Tensor, data: Tensor) -> Tensor:
        outputs, labels = self.likelihood.outputs(theta, data), data[:, -1:].long()
        own, rivals = outputs.gather(1, labels).squeeze(1), outputs.scatter(1, labels, -math.inf).amax(1)
        return ~(own > rivals)  # negated so that NaN counts as an error


def _release(family: Likelihood, epsilon: float, reading: Reading) -> tuple[Release, ...]:
    """Bound an attacker's advantage; not for an estimated network, whose epsilon is an excess and bounds none."""
    if isinstance(family, Network) and epsilon > 0:
        return ()
    return bound_advantages(epsilon, picked_by_weight=reading == "weighted draws")


def _bound_risk(
    family: ClassifierFamily, posterior: MeanFieldGaussian | SampleSet, rows: Tensor, seed: int
) -> RiskBound:
    gaussian = _gaussian(family, posterior, rows)
    if isinstance(family, Network):
        classifier = NetworkClassifier(family, family.classes, family.prior_std)
        return bound_risk(classifier, gaussian, rows, seed, _RISK_DRAWS, rows_per_draw=_NETWORK_ROWS_PER_DRAW)
    return bound_risk(Classifier(family, family.classes, family.prior_std), gaussian, rows, seed, _RISK_DRAWS)


def _gaussian(family: Likelihood, posterior: MeanFieldGaussian | SampleSet, rows: Tensor) -> Gaussian:
    """Return the posterior itself, or for samples the Laplace approximation at the mode nearest to their mean."""
    if isinstance(posterior, MeanFieldGaussian):
        return posterior
    return fit_laplace(Potential(family, rows), posterior.mean)


def _draw(posterior: MeanFieldGaussian | SampleSet | Ensemble, seed: int, count: int, reading: Reading) -> Tensor:
    """Draw parameters with noise, or chain positions, that depend on the seed only.

    Draws of the posteriors before and after then differ by the effect of forgetting alone. Weighted draws are picked at
    evenly spaced levels of their cumulative weight. An ensemble is its members, whose predictions are averaged.
    """
    if isinstance(posterior, Ensemble):
        return posterior.members
    if isinstance(posterior, SampleSet):
        draws = posterior.samples
        if reading == "weighted draws":
            levels = (torch.arange(count, dtype=torch.float64, device=draws.device) + 0.5) / count
            return draws[torch.searchsorted(posterior.weights.cumsum(0), levels).clamp(max=len(draws) - 1)]
        return draws[torch.linspace(0, len(draws) - 1, min(count, len(draws))).round().long()]
    mean, std = posterior.mean.flatten(), posterior.std.flatten()
    noise = torch.randn(count, len(mean), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return mean + std * noise.to(mean.device)
