"""What else a certificate carries: what forgetting did to the model, as an attacker, a user and a statistician see it.

Evidence beside the bound, never in its place: nothing here makes a level better or a policy met.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ml.certify.membership import MembershipReport, audit_membership
from ml.certify.pac_bayes import NOT_PROVED, Classifier, PacBayes, bound_risk
from ml.certify.release import Release, advantages
from ml.groups import retained_rows
from ml.models.likelihood import Likelihood
from ml.posterior import MeanFieldGaussian

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
    before: MeanFieldGaussian,
    after: MeanFieldGaussian,
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
        risks = PacBayes(*(bound_risk(classifier, posterior, rows, seed, _RISK_DRAWS) for posterior, rows in sides))
    earlier, later = _drawn(before, seed), _drawn(after, seed)
    membership = audit_membership(family, earlier, later, data[forgotten], retained, never_seen, seed)
    return Effects(advantages(epsilon), risks, membership)


def _drawn(posterior: MeanFieldGaussian, seed: int) -> Tensor:
    """The same noise for both posteriors, so that only forgetting tells them apart."""
    mean, std = posterior.mean.flatten(), posterior.std.flatten()
    noise = torch.randn(_DRAWS, len(mean), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return mean + std * noise.to(mean.device)
