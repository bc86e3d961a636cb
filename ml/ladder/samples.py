"""The ladder for sample sets: rung by rung, from a first-order map to sampling anew, until a model's policy is met.

    influence   the affine map to first order in the group, by products with Hessians alone
    newton      the affine map between the Laplace fits, modes and widths taken all the way
    retrain     chains on what is retained, from the mode there: the reference itself, as far as chains are

There is no warm restart between them: chains that go on from moved samples and forget where they came from are new
chains, and those that do not are not certified by weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.certify.certificate import Certificate
from ml.certify.readiness import diagnose_samples
from ml.certify.weights import certify_resampled, certify_samples
from ml.forgetting.groups import retained_of_sampled
from ml.forgetting.samples import Moved, affine_map, affine_map_matrix_free
from ml.inference.chains import SAFE_SGLD, sample
from ml.inference.diagnostics import Diagnostics
from ml.ladder.climb import Climbed, Tried, Way, climb, silent
from ml.ladder.policy import Policy
from ml.ladder.variational import OnProgress, OnStep
from ml.models.likelihood import Likelihood
from ml.models.potential import Potential
from ml.posteriors.sample_set import SampleSet
from vocabulary.rungs import RungName

_SEED = 0

Reached = Tried[SampleSet]


def forget_sample_set(
    likelihood: Likelihood,
    sample_set: SampleSet,
    data: Tensor,
    forgotten: Tensor,
    policy: Policy,
    on_progress: OnProgress | None = None,
    on_step: OnStep | None = None,
) -> Climbed[SampleSet]:
    """Carry stored samples to the posterior without the rows at positions `forgotten`, until `policy` is met.

    A policy that demands "proved" leaves nothing but sampling anew: weights only estimate. `on_step` is told after each
    rung, with the gradient at the mean of its samples: zero where that is the mode. What the error of a mean of so many
    draws leaves of it, and the skewness of the posterior, no rung takes away.
    """
    started = time.perf_counter()
    retained = retained_of_sampled(likelihood, sample_set.samples, data, forgotten)
    report = on_progress or silent
    report("diagnostics", 0.0)
    task = _Task(likelihood, sample_set, data, forgotten, retained, diagnose_samples(likelihood, sample_set, data))
    ways: dict[RungName, Way[SampleSet]] = {
        "influence": task.influence,
        "newton": task.newton,
        "retrain": task.retrain,
    }
    return climb(ways, policy, started, report, on_step)


@dataclass(frozen=True, eq=False)
class _Task:
    likelihood: Likelihood
    before: SampleSet
    data: Tensor
    forgotten: Tensor
    retained: Tensor
    diagnostics: Diagnostics

    def influence(self, _: Reached | None) -> Reached:
        return self._moved_by(affine_map_matrix_free, "conjugate gradients")

    def newton(self, _: Reached | None) -> Reached:
        return self._moved_by(affine_map, "cholesky")

    def retrain(self, _: Reached | None) -> Reached:
        """Our safe chains, from the mode that Newton's method finds from the samples' mean, which tells the basin."""
        generator = torch.Generator().manual_seed(_SEED)
        drawn = sample(self.likelihood, self.retained, self.before.mean, SAFE_SGLD, generator)
        return self._reached(drawn.sample_set, certify_resampled(drawn, len(self.retained)))

    def _moved_by(self, move: Callable[[Likelihood, Tensor, Tensor, Tensor], Moved], solver: str) -> Reached:
        moved = move(self.likelihood, self.before.samples, self.data, self.forgotten)
        certificate = certify_samples(
            self.likelihood, self.before, moved, self.data, self.forgotten, self.diagnostics, _SEED
        )
        return self._reached(SampleSet(moved.samples, self.before.chain), certificate, solver)

    def _reached(self, samples: SampleSet, certificate: Certificate, solver: str | None = None) -> Reached:
        """The gradient takes one pass over what is retained, where a certificate's weights take one for each sample."""
        residual = float(Potential(self.likelihood, self.retained).gradient(samples.mean).norm())
        return Tried(samples, certificate, residual, solver=solver)
