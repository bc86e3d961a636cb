"""What else a certificate carries: what forgetting did to the model, as an attacker, a user and a statistician see it.

Evidence beside the bound, never in its place: nothing here makes a level better or a policy met.
"""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ml.certify.membership import MembershipReport, audit_membership
from ml.certify.pac_bayes import NOT_PROVED, Classifier, Gaussian, PacBayes, RiskBound, bound_risk
from ml.certify.release import Release, advantages
from ml.forgetting.retained import retained_rows
from ml.inference.laplace import fit_laplace
from ml.models.likelihood import Likelihood
from ml.models.network import Network
from ml.models.potential import Potential
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.posteriors.sample_set import SampleSet

_DRAWS = 64  # scores are averaged over them
_RISK_DRAWS = 200
# A row costs a network far more than a regression. Fewer draws make the attack's scores noisier, for all groups alike.
# Fewer rows for a draw leave its error rate unbiased and independent of the others', which is all the bound asks for.
_NETWORK_DRAWS = 16
_NETWORK_ROWS_PER_DRAW = 256


@runtime_checkable
class Classifying(Likelihood, Protocol):
    """A family whose rows end in a label: it has a risk to bound."""

    prior_std: float

    @property
    def classes(self) -> int: ...


@dataclass(frozen=True)
class Effects:
    release: tuple[Release, ...]
    """Empty where no divergence is known."""
    pac_bayes: PacBayes | None
    """None for a family that does not classify: its loss is unbounded."""
    membership: MembershipReport

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "release": [asdict(release) for release in self.release],
            "pac_bayes": self.pac_bayes and {**self.pac_bayes.to_dict(), "not_proved": list(NOT_PROVED)},
            "membership": self.membership.to_dict(),
        }


def effects_of(
    family: Likelihood,
    before: MeanFieldGaussian | SampleSet,
    after: MeanFieldGaussian | SampleSet,
    data: Tensor,
    forgotten: Tensor,
    epsilon: float,
    never_seen: Tensor | None = None,
    seed: int = 0,
) -> Effects:
    """Of forgetting the rows at positions `forgotten`, with a certified divergence of at most `epsilon`."""
    retained = retained_rows(data, forgotten)
    risks = None
    if isinstance(family, Classifying):
        bound = functools.partial(_bound_risk, family, seed=seed)
        risks = PacBayes(bound(before, data), bound(after, retained))
    draws = _NETWORK_DRAWS if isinstance(family, Network) else _DRAWS
    earlier, later = _drawn(before, seed, draws), _drawn(after, seed, draws)
    membership = audit_membership(family, earlier, later, data[forgotten], retained, never_seen, seed)
    return Effects(_release(family, epsilon), risks, membership)


@dataclass(frozen=True)
class NetworkClassifier(Classifier):
    """Its outputs tell the likeliest label in one pass."""

    likelihood: Network

    def errors(self, theta: Tensor, data: Tensor) -> Tensor:
        outputs, labels = self.likelihood.outputs(theta, data), data[:, -1:].long()
        own, rivals = outputs.gather(1, labels).squeeze(1), outputs.scatter(1, labels, -math.inf).amax(1)
        return ~(own > rivals)  # so that NaN is wrong


def _release(family: Likelihood, epsilon: float) -> tuple[Release, ...]:
    """None for a network that was not retrained: its epsilon is an excess of divergence, from which no advantage
    follows.
    """
    return () if isinstance(family, Network) and epsilon > 0 else advantages(epsilon)


def _bound_risk(family: Classifying, posterior: MeanFieldGaussian | SampleSet, rows: Tensor, seed: int) -> RiskBound:
    gaussian = _gaussian(family, posterior, rows)
    if isinstance(family, Network):
        classifier = NetworkClassifier(family, family.classes, family.prior_std)
        return bound_risk(classifier, gaussian, rows, seed, _RISK_DRAWS, rows_per_draw=_NETWORK_ROWS_PER_DRAW)
    return bound_risk(Classifier(family, family.classes, family.prior_std), gaussian, rows, seed, _RISK_DRAWS)


def _gaussian(family: Likelihood, posterior: MeanFieldGaussian | SampleSet, rows: Tensor) -> Gaussian:
    """What a risk bound can be had of; for samples, the Gaussian at the mode that is nearest to their mean."""
    if isinstance(posterior, MeanFieldGaussian):
        return posterior
    return fit_laplace(Potential(family, rows), posterior.mean)


def _drawn(posterior: MeanFieldGaussian | SampleSet, seed: int, count: int) -> Tensor:
    """The same noise, or the same places of the chains, for both posteriors: only forgetting tells them apart."""
    if isinstance(posterior, SampleSet):
        draws = posterior.samples
        return draws[torch.linspace(0, len(draws) - 1, min(count, len(draws))).round().long()]
    mean, std = posterior.mean.flatten(), posterior.std.flatten()
    noise = torch.randn(count, len(mean), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return mean + std * noise.to(mean.device)
