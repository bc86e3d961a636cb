"""Ladder for variational posteriors of families with closed forms.

    influence   γ + H(S)⁻¹ Σ ∇h                 removes the influence of the forgotten rows, to first order
    newton      γ - H(R)⁻¹ ∇F(γ, R), repeated   refines on the retained rows
    warm        training on the retained rows, started at the stored posterior
    retrain     training on the retained rows from scratch: the reference itself

Each certificate is computed at the posterior that a rung reached, on the rows retained now. So errors do not add up
over a sequence of deletions, and a rung that goes wrong costs only time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from ml.certify import Certificate
from ml.certify.elbo_distance import state_elbo_distance
from ml.certify.fresh_starts import state_fresh_starts
from ml.certify.kantorovich import certify_expansion, certify_retrained
from ml.errors import NumericalFailure
from ml.forgetting.retained import retained_rows
from ml.forgetting.variational import influence_step
from ml.inference.variational import descend, train
from ml.ladder.climb import Candidate, OnProgress, OnStep, Outcome, Progress, Rung, climb, conclude
from ml.ladder.policy import Policy
from ml.models.family import Expansion, Family
from ml.models.newton import newton_step
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.solvers import Solution, solve
from vocabulary.rungs import RungName

_MAX_NEWTON_STEPS = 20
# The influence step is of first order in the group's share of the rows. For a large share a few cheap sweeps over the
# retained rows save more time in Newton steps than they take. They count as part of the influence rung.
_LARGE_SHARE = 0.25
_SWEEPS = 4
_RETRAINING_SEED = 0


def forget(
    family: Family,
    posterior: MeanFieldGaussian,
    data: Tensor,
    forgotten: Tensor,
    policy: Policy,
    on_progress: OnProgress | None = None,
    on_step: OnStep | None = None,
    hessian: Tensor | None = None,
    examine_reference: bool = True,
) -> Outcome[MeanFieldGaussian]:
    """Remove the rows at positions `forgotten` of `data`: climb until `policy` is met or its rungs are used up.

    The residual of a step is ‖∇F‖₂ over the retained rows. `hessian` is that of `influence_step`, for instance from
    the last outcome, and saves a pass over the data. A wrong one costs steps, never the validity of the certificate,
    which is computed afresh on the retained rows. `examine_reference` adds to the certificate what is known of its
    reference: the distance to the optimum of the exact ELBO, and fresh starts. Neither forgets anything; the
    seconds of the outcome leave them out.
    """
    progress = Progress(policy.seconds, on_progress, on_step)
    family.check_data(data)
    family.check_posterior(posterior)
    retained = retained_rows(data, forgotten)
    family.check_data(retained)
    ladder = _Ladder(family, posterior, data, forgotten, retained, policy, progress, hessian)
    candidate, records = climb(ladder.rungs(), policy, progress, strongest="proved")
    certified = ladder.certified(candidate)
    outcome = conclude(certified, records, policy, progress, candidate.expansion.hessian)
    if examine_reference and outcome.policy_met:
        return replace(outcome, certificate=ladder.examine(outcome.certificate, candidate.expansion))
    return outcome


@dataclass(frozen=True, eq=False, kw_only=True)
class _Expanded(Candidate[MeanFieldGaussian]):
    """Candidate with its expansion. `newton` is H⁻¹∇F, None if H is not positive definite. It is solved for once: it
    shows whether a certificate can meet the policy, enters that certificate, and is the next Newton step.
    """

    expansion: Expansion
    newton: Solution | None = None


@dataclass(frozen=True, eq=False)
class _Ladder:
    family: Family
    before: MeanFieldGaussian
    data: Tensor
    forgotten: Tensor
    retained: Tensor
    policy: Policy
    progress: Progress
    hessian: Tensor | None

    def rungs(self) -> dict[RungName, Rung[_Expanded]]:
        return {"influence": self.influence, "newton": self.newton, "warm": self.warm, "retrain": self.retrain}

    def influence(self, _: _Expanded | None) -> _Expanded:
        posterior = influence_step(self.family, self.before, self.data, self.forgotten, self.hessian)
        for _sweep in range(_SWEEPS if len(self.forgotten) > _LARGE_SHARE * len(self.data) else 0):
            posterior = self.family.sweep(posterior, self.retained)
        return self._candidate(self._report("influence", 1, self._expand(posterior)))

    def newton(self, below: _Expanded | None) -> _Expanded:
        candidate = below or self._candidate(self._expand(self.before))
        for step in range(_MAX_NEWTON_STEPS):
            if step > 0 and self.progress.over_budget:
                break
            self.progress.report("newton", (step + 1) / (step + 2))
            direction = None if candidate.newton is None else candidate.newton.x
            try:
                expansion = newton_step(self.family, candidate.expansion, self.retained, direction)
            except NumericalFailure:
                break  # the basin vanished with the forgotten rows: the certificate of this candidate says so
            candidate = self._candidate(self._report("newton", step + 1, expansion), step + 1)
            if candidate.meets(self.policy):
                break
        return self.certified(candidate)

    def warm(self, _: _Expanded | None) -> _Expanded:
        """Start at the stored posterior, not at the candidate below: that may be outside of every basin."""
        trained = train(self.family, self.retained, self.before)
        expansion = self._report("warm", trained.iterations, self._expand(trained.posterior))
        return self.certified(_expanded(expansion, trained.iterations))

    def retrain(self, _: _Expanded | None) -> _Expanded:
        """Train from scratch. What that reaches has read the retained rows only, whether or not it converged."""
        trained = descend(self.family, self.retained, self.family.initial(self.retained, _RETRAINING_SEED))
        expansion = self._report("retrain", trained.iterations, self._expand(trained.posterior))
        certificate = certify_retrained(self.family, expansion, self.retained)
        return _with_certificate(_expanded(expansion, trained.iterations), certificate)

    def certified(self, candidate: _Expanded) -> _Expanded:
        """Compute the certificate if it was left out."""
        if candidate.certificate is not None:
            return candidate
        certificate = certify_expansion(self.family, candidate.expansion, self.retained, candidate.newton)
        return _with_certificate(candidate, certificate)

    def examine(self, certificate: Certificate, expansion: Expansion) -> Certificate:
        """Add what is known of the reference that the certificate speaks of."""
        certificate = state_elbo_distance(certificate, self.family, expansion, self.retained)
        if certificate.level == "proved":  # a retrained posterior is its own reference
            certificate = state_fresh_starts(certificate, self.family, expansion, self.retained)
        return certificate

    def _candidate(self, expansion: Expansion, steps: int = 1) -> _Expanded:
        """Return the candidate, with a certificate unless that could not meet the policy."""
        candidate = _expanded(expansion, steps)
        try:
            newton = solve(expansion.hessian, expansion.gradient)
        except NumericalFailure:
            return candidate
        at_least = _lower_bound(expansion, newton)
        candidate = replace(candidate, newton=newton, solver=newton.solver, at_least=at_least)
        return self.certified(candidate) if at_least <= self.policy.epsilon else candidate

    def _expand(self, posterior: MeanFieldGaussian) -> Expansion:
        return self.family.expand(posterior, self.retained)

    def _report(self, rung: RungName, step: int, expansion: Expansion) -> Expansion:
        self.progress.step(rung, step, float(expansion.gradient.norm()))
        return expansion


def _expanded(expansion: Expansion, steps: int) -> _Expanded:
    return _Expanded(posterior=expansion.posterior, certificate=None, steps=steps, expansion=expansion)


def _with_certificate(candidate: _Expanded, certificate: Certificate) -> _Expanded:
    at_least = certificate.epsilon if math.isfinite(certificate.epsilon) else 0.0
    return replace(candidate, certificate=certificate, at_least=at_least)


def _lower_bound(expansion: Expansion, newton: Solution) -> float:
    """Return a lower bound of every certificate here: one that must miss the policy need not be computed.

    A certificate is a supremum over a box around the Newton point: at least the divergence to that point, and so at
    least the part of it due to the means, ½|Δμ/σ'|². 0 says nothing: the step leaves means and takes a whole width.
    """
    mean_step, std_step = newton.x.chunk(2)
    gap = mean_step / (expansion.posterior.std.flatten() - std_step)
    divergence = 0.5 * float(gap.dot(gap))
    return 0.0 if math.isnan(divergence) else divergence
