"""Ladder for sample sets.

    influence   affine map to first order in the group, by products with Hessians alone
    newton      affine map between the Laplace fits, with exact modes and widths
    retrain     chains on the retained rows, from the mode there: the reference itself, as far as chains go

There is no warm restart: chains that continue from moved samples and forget their start are new chains, and chains
that do not forget it cannot be certified by weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.certify.certificate import Certificate
from ml.certify.sample_readiness import diagnose_samples
from ml.certify.samples import certify_resampled, certify_samples
from ml.forgetting.retained import retained_rows_of_samples
from ml.forgetting.samples import MovedSamples, affine_map, affine_map_matrix_free
from ml.inference.chains import SAFE_SGLD, sample
from ml.inference.diagnostics import Diagnostics
from ml.ladder.climb import Candidate, OnProgress, OnStep, Outcome, Progress, Rung, climb, conclude
from ml.ladder.policy import Policy
from ml.models.likelihood import Likelihood
from ml.models.potential import Potential
from ml.posteriors.sample_set import SampleSet
from vocabulary.rungs import RungName

_SEED = 0

_Samples = Candidate[SampleSet]


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
    ladder = _Ladder(likelihood, posterior, data, forgotten, retained, progress, diagnostics)
    candidate, records = climb(ladder.rungs(), policy, progress, strongest="estimated")
    return conclude(candidate, records, policy, progress)


@dataclass(frozen=True, eq=False)
class _Ladder:
    likelihood: Likelihood
    before: SampleSet
    data: Tensor
    forgotten: Tensor
    retained: Tensor
    progress: Progress
    diagnostics: Diagnostics

    def rungs(self) -> dict[RungName, Rung[_Samples]]:
        return {"influence": self.influence, "newton": self.newton, "retrain": self.retrain}

    def influence(self, _: _Samples | None) -> _Samples:
        return self._mapped("influence", affine_map_matrix_free, "conjugate gradients")

    def newton(self, _: _Samples | None) -> _Samples:
        return self._mapped("newton", affine_map, "cholesky")

    def retrain(self, _: _Samples | None) -> _Samples:
        """Run safe chains from the mode of the basin that contains the samples' mean, found by Newton's method."""
        generator = torch.Generator().manual_seed(_SEED)
        drawn = sample(self.likelihood, self.retained, self.before.mean, SAFE_SGLD, generator)
        return self._candidate("retrain", drawn.sample_set, certify_resampled(drawn, len(self.retained)))

    def _mapped(
        self, rung: RungName, transform: Callable[[Likelihood, Tensor, Tensor, Tensor], MovedSamples], solver: str
    ) -> _Samples:
        moved = transform(self.likelihood, self.before.samples, self.data, self.forgotten)
        certificate = certify_samples(
            self.likelihood, self.before, moved, self.data, self.forgotten, self.diagnostics, _SEED
        )
        return self._candidate(rung, SampleSet(moved.samples, self.before.chain), certificate, solver)

    def _candidate(
        self, rung: RungName, samples: SampleSet, certificate: Certificate, solver: str | None = None
    ) -> _Samples:
        """The residual takes one pass over the retained rows; a certificate's weights take one for each sample."""
        self.progress.step(rung, 1, float(Potential(self.likelihood, self.retained).gradient(samples.mean).norm()))
        return Candidate(posterior=samples, certificate=certificate, solver=solver)
