"""Effects of forgetting that a certificate reports beside its bound: release, risk, membership attacks, predictions.

They are additional evidence only: they never raise a certificate's level or satisfy a policy.
"""

from __future__ import annotations

import contextlib
import functools
import math
from dataclasses import asdict, dataclass
from typing import Any, TypeGuard

from torch import Tensor

from ml.certify.function_space import FunctionSpace, measure_function_space
from ml.certify.membership import MAX_ROWS, MembershipReport, audit_membership
from ml.certify.pac_bayes import NOT_PROVED, Classifier, Gaussian, PacBayes, RiskBound, bound_risk
from ml.certify.predictive import ClassifierFamily, Posterior, even_draws, weighted_draws
from ml.certify.release import Release, bound_advantages
from ml.errors import NumericalFailure
from ml.forgetting.retained import retained_rows
from ml.inference.laplace import fit_laplace
from ml.models.likelihood import Likelihood
from ml.models.network import Network
from ml.models.potential import Potential
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.posteriors.sample_set import SampleSet
from vocabulary.posterior_kinds import Reading
from vocabulary.references import Reference

_DRAWS = 64  # over which membership scores are averaged
_FUNCTION_DRAWS = 64  # over which predictions are averaged
_RISK_DRAWS = 200
# Evaluating a row is far more expensive for a network than for a regression. Fewer draws make the attack's scores
# noisier, equally for all groups. Fewer rows per draw keep each draw's error rate unbiased and independent of the
# others, which is all the risk bound requires.
_NETWORK_DRAWS = 16
_NETWORK_MEMBERSHIP_ROWS = 512  # of each group; the standard error of its AUC is then below 0.03
_NETWORK_ROWS_PER_DRAW = 256


@dataclass(frozen=True)
class Effects:
    """Effects of one forgetting: advantages from released draws, risk bounds, membership attacks, predictions."""

    release: tuple[Release, ...]
    """Empty if no divergence is known, or only one from a law that may know the rows (stored draws)."""
    pac_bayes: PacBayes | None
    """None for a family that is not a classifier, whose loss is unbounded; for samples of a network, which no Gaussian
    stands for; for an ensemble, whose members are points and infinitely far from the prior; and where rounding defeats
    the bound."""
    membership: MembershipReport
    function_space: FunctionSpace | None
    """None for a family that is not a classifier, and where a prediction is not finite."""

    def to_dict(self) -> dict[str, Any]:
        """Return the effects as JSON values."""
        return {
            "release": [asdict(release) for release in self.release],
            "pac_bayes": self.pac_bayes and {**self.pac_bayes.to_dict(), "not_proved": list(NOT_PROVED)},
            "membership": self.membership.to_dict(),
            "function_space": self.function_space and self.function_space.to_dict(),
        }


def measure_effects(
    family: Likelihood,
    before: Posterior,
    after: Posterior,
    data: Tensor,
    forgotten: Tensor,
    epsilon: float,
    never_seen: Tensor | None = None,
    seed: int = 0,
    reading: Reading = "draws",
    reference: Reference | None = None,
) -> Effects:
    """Measure what forgetting the rows at positions `forgotten` did, given a certified divergence of `epsilon`.

    `reading` says how the samples of a sample set have to be read for that divergence to hold, and `reference` from
    what it is.
    """
    retained = retained_rows(data, forgotten)
    risks = function_space = None
    if isinstance(family, ClassifierFamily):
        # Evidence beside the bound must not keep anybody from forgetting.
        if _has_gaussian(before, family) and _has_gaussian(after, family):
            bound = functools.partial(_bound_risk, family, seed=seed)
            with contextlib.suppress(NumericalFailure):
                risks = PacBayes(bound(before, data), bound(after, retained))
        old, new = (weighted_draws(posterior, _FUNCTION_DRAWS, seed, reading) for posterior in (before, after))
        with contextlib.suppress(NumericalFailure):
            function_space = measure_function_space(family, old, new, data[forgotten], retained, never_seen, seed)
    membership = _attack(family, before, after, data[forgotten], retained, never_seen, seed, reading)
    release = _release(family, after, epsilon, reading) if reference != "stored draws" else ()
    return Effects(release, risks, membership, function_space)


@dataclass(frozen=True)
class NetworkClassifier(Classifier):
    """Classifier that finds the most likely label in one forward pass."""

    likelihood: Network

    def errors(self, theta: Tensor, data: Tensor) -> Tensor:
        outputs, labels = self.likelihood.outputs(theta, data), data[:, -1:].long()
        own, rivals = outputs.gather(1, labels).squeeze(1), outputs.scatter(1, labels, -math.inf).amax(1)
        return ~(own > rivals)  # negated so that NaN counts as an error


def _attack(
    family: Likelihood,
    before: Posterior,
    after: Posterior,
    forgotten: Tensor,
    retained: Tensor,
    never_seen: Tensor | None,
    seed: int,
    reading: Reading,
) -> MembershipReport:
    draws, rows = (_NETWORK_DRAWS, _NETWORK_MEMBERSHIP_ROWS) if isinstance(family, Network) else (_DRAWS, MAX_ROWS)
    draws_before, draws_after = (even_draws(posterior, draws, seed, reading) for posterior in (before, after))
    return audit_membership(family, draws_before, draws_after, forgotten, retained, never_seen, seed, rows)


def _release(family: Likelihood, posterior: Posterior, epsilon: float, reading: Reading) -> tuple[Release, ...]:
    """Bound an attacker's advantage; not for an estimated variational network, whose epsilon is an excess."""
    if isinstance(family, Network) and isinstance(posterior, MeanFieldGaussian) and epsilon > 0:
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


def _has_gaussian(posterior: Posterior, family: Likelihood) -> TypeGuard[MeanFieldGaussian | SampleSet]:
    return isinstance(posterior, MeanFieldGaussian) or not isinstance(family, Network)


def _gaussian(family: Likelihood, posterior: MeanFieldGaussian | SampleSet, rows: Tensor) -> Gaussian:
    """Return the posterior itself, or for samples the Laplace approximation at the mode nearest to their mean."""
    if isinstance(posterior, MeanFieldGaussian):
        return posterior
    return fit_laplace(Potential(family, rows), posterior.mean)
