"""Ladder for sample sets.

    influence   affine map to first order in the group, by products with Hessians alone
    newton      affine map between the Laplace fits, with exact modes and widths
    reweight    the draws stay; their weights divide the likelihood of the forgotten rows out
    temper      weights in stages, each followed by chain steps that make them even again
    retrain     chains on the retained rows, from the mode there: the reference itself, as far as chains go

There is no warm restart: chains that continue from moved samples and forget their start are new chains, and chains
that do not forget it cannot be certified by weights.

Every rung but the last multiplies the weights of the set by its own, and certifies what all deletions left together. So
the weights wear out. A map that is exact leaves them as they were: where they are worn out before the deletion, only
new draws help, which start with even weights. Reweighting is the cheapest rung, but comes after the maps: draws that
only were weighted stay where the forgotten rows had put them, and no later map brings them back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ml.certify.sample_readiness import diagnose_samples
from ml.certify.samples import (
    CertifiedSamples,
    certify_moved,
    certify_resampled,
    certify_reweighted,
    describe_wear,
)
from ml.certify.tempered import certify_tempered
from ml.errors import NumericalFailure
from ml.forgetting.retained import retained_rows_of_samples
from ml.forgetting.samples import MovedSamples, affine_map, affine_map_matrix_free
from ml.forgetting.tempering import TemperConfig, expected_row_passes, temper
from ml.inference.chains import SAFE_HMC, Sampled, sample
from ml.inference.diagnostics import Diagnostics
from ml.ladder.climb import Candidate, OnProgress, OnStep, Outcome, Progress, Rung, climb, conclude
from ml.ladder.policy import Policy
from ml.models.likelihood import Likelihood
from ml.models.potential import Potential
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.posteriors.sample_set import SampleSet
from vocabulary.rungs import RungName

_SEED = 0

_Samples = Candidate[SampleSet]


@runtime_checkable
class _Trainable(Protocol):
    def initial(self, data: Tensor, seed: int) -> MeanFieldGaussian: ...


_Transform = Callable[[Likelihood, Tensor, Tensor, Tensor, Tensor], MovedSamples]


def forget(
    likelihood: Likelihood,
    posterior: SampleSet,
    data: Tensor,
    forgotten: Tensor,
    policy: Policy,
    on_progress: OnProgress | None = None,
    on_step: OnStep | None = None,
) -> Outcome[SampleSet]:
    """Remove the rows at positions `forgotten` of `data`: climb until `policy` is met or its rungs are used up.

    Importance weights only estimate, so a policy that requires "proved" leaves nothing but new chains. The residual of
    a step is the norm of the gradient at the mean of the samples: zero if that is the mode. No rung removes the part
    that is due to the finite number of draws and to the skewness of the posterior.
    """
    progress = Progress(policy.seconds, on_progress, on_step)
    retained = retained_rows_of_samples(likelihood, posterior.samples, data, forgotten)
    progress.report("diagnostics", 0.0)
    diagnostics = diagnose_samples(likelihood, posterior, data)
    ladder = _Ladder(likelihood, posterior, data, forgotten, retained, policy, progress, diagnostics)
    candidate, records = climb(ladder.rungs(), policy, progress, strongest="estimated")
    return conclude(candidate, records, policy, progress)


@dataclass(frozen=True, eq=False)
class _Ladder:
    likelihood: Likelihood
    before: SampleSet
    data: Tensor
    forgotten: Tensor
    retained: Tensor
    policy: Policy
    progress: Progress
    diagnostics: Diagnostics

    def rungs(self) -> dict[RungName, Rung[_Samples]]:
        return {
            "influence": self.influence,
            "newton": self.newton,
            "reweight": self.reweight,
            "temper": self.temper,
            "retrain": self.retrain,
        }

    def influence(self, _: _Samples | None) -> _Samples:
        return self._mapped("influence", affine_map_matrix_free, "conjugate gradients")

    def newton(self, _: _Samples | None) -> _Samples:
        return self._mapped("newton", affine_map, "cholesky")

    def reweight(self, _: _Samples | None) -> _Samples:
        """Weigh the draws, which stay: a limit of 0 has them read with their weights wherever these allow it."""
        self._check_wear()
        certified = certify_reweighted(
            self.likelihood,
            self.before,
            self.data,
            self.forgotten,
            self.diagnostics,
            limit=0.0,
            seed=_SEED,
            reference=self.policy.reference,
            posterior_limit=self.policy.epsilon,
        )
        return self._weighed("reweight", certified)

    def temper(self, _: _Samples | None) -> _Samples:
        """Temper draws of the posterior, if that is cheaper than new chains, in gradients of a row at a draw."""
        if self.diagnostics.warning is not None:
            raise NumericalFailure(f"only draws of the posterior are tempered: {self.diagnostics.warning}")
        expected = expected_row_passes(self.likelihood, self.before, self.data, self.forgotten)
        affordable = SAFE_HMC.row_passes(len(self.retained))
        if expected > affordable:
            raise NumericalFailure(
                f"tempering would take {expected:.2g} gradients of a row, new chains {affordable:.2g}: not tried"
            )
        tempered = temper(
            self.likelihood,
            self.before,
            self.data,
            self.forgotten,
            torch.Generator().manual_seed(_SEED),
            TemperConfig(max_row_passes=affordable),
            lambda _, removed: self.progress.report("temper", removed),
        )
        diagnostics = diagnose_samples(self.likelihood, tempered.sample_set, self.retained)
        self._report("temper", tempered.sample_set)
        certificate = certify_tempered(tempered, diagnostics, len(self.data), len(self.retained))
        failure = "; ".join(certificate.reasons) or None
        return Candidate(posterior=tempered.sample_set, certificate=certificate, steps=tempered.stages, failure=failure)

    def retrain(self, _: _Samples | None) -> _Samples:
        """Run safe chains from the mode of the basin that contains the samples' mean, found by Newton's method.

        Samples in no basin, for instance at a saddle, are no start: then from where training would begin.
        """
        try:
            drawn = self._run_chains(self.before.mean)
        except NumericalFailure:
            if not isinstance(self.likelihood, _Trainable):
                raise
            drawn = self._run_chains(self.likelihood.initial(self.retained, _SEED).mean.flatten())
        self._report("retrain", drawn.sample_set)
        return Candidate(posterior=drawn.sample_set, certificate=certify_resampled(drawn, len(self.retained)))

    def _run_chains(self, start: Tensor) -> Sampled:
        return sample(self.likelihood, self.retained, start, SAFE_HMC, torch.Generator().manual_seed(_SEED))

    def _mapped(self, rung: RungName, transform: _Transform, solver: str) -> _Samples:
        self._check_wear()
        moved = transform(self.likelihood, self.before.samples, self.data, self.forgotten, self.before.mean)
        certified = certify_moved(
            self.likelihood, self.before, moved, self.data, self.forgotten, self.diagnostics, self.policy.epsilon, _SEED
        )
        return self._weighed(rung, certified, solver)

    def _weighed(self, rung: RungName, certified: CertifiedSamples, solver: str | None = None) -> _Samples:
        self._report(rung, certified.sample_set)
        certificate = certified.certificate
        failure = "; ".join(certificate.reasons) or None
        return Candidate(posterior=certified.sample_set, certificate=certificate, solver=solver, failure=failure)

    def _check_wear(self) -> None:
        worn = describe_wear(self.before)
        if worn is not None:
            raise NumericalFailure(worn)

    def _report(self, rung: RungName, samples: SampleSet) -> None:
        """Report the residual. It takes one pass over the retained rows; the diagnostics take one for each sample."""
        self.progress.step(rung, 1, float(Potential(self.likelihood, self.retained).gradient(samples.mean).norm()))
