"""What else a certificate carries: what forgetting did to the model, as an attacker, a user and a statistician see it.

Evidence beside the bound, never in its place: nothing here makes a level better or a policy met.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ml.certify.membership import MembershipReport, audit_membership
from ml.certify.pac_bayes import NOT_PROVED, Classifier, Gaussian, PacBayes, bound_risk
from ml.certify.release import Release, advantages
from ml.curvature import Potential
from ml.groups import retained_rows
from ml.inference.laplace import fit_laplace
from ml.models.likelihood import Likelihood
from ml.posterior import MeanFieldGaussian
from ml.sample_set import SampleSet

_DRAWS = 64  # scores are averaged over them
_RISK_DRAWS = 200


@runtime_checkable
class Classifying(Protocol):
    """A family whose rows end in a label: it has a risk to bound."""

    prior_std: float

    @property
    def classes(self) -> int: ...


@dataclass(frozen=True)
class Effects:
    release: tuple[Release, ...]
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
        classifier = Classifier(family, family.classes, family.prior_std)
        sides = ((before, data), (after, retained))
        risks = PacBayes(
            *(
                bound_risk(classifier, _gaussian(family, posterior, rows), rows, seed, _RISK_DRAWS)
                for posterior, rows in sides
            )
        )
    earlier, later = _drawn(before, seed), _drawn(after, seed)
    membership = audit_membership(family, earlier, later, data[forgotten], retained, never_seen, seed)
    return Effects(advantages(epsilon), risks, membership)


def _gaussian(family: Likelihood, posterior: MeanFieldGaussian | SampleSet, rows: Tensor) -> Gaussian:
    """What a risk bound can be had of; for samples, the Gaussian at the mode that is nearest to their mean."""
    if isinstance(posterior, MeanFieldGaussian):
        return posterior
    return fit_laplace(Potential(family, rows), posterior.mean)


def _drawn(posterior: MeanFieldGaussian | SampleSet, seed: int) -> Tensor:
    """The same noise, or the same places of the chains, for both posteriors: only forgetting tells them apart."""
    if isinstance(posterior, SampleSet):
        draws = posterior.samples
        return draws[torch.linspace(0, len(draws) - 1, min(_DRAWS, len(draws))).round().long()]
    mean, std = posterior.mean.flatten(), posterior.std.flatten()
    noise = torch.randn(_DRAWS, len(mean), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return mean + std * noise.to(mean.device)
