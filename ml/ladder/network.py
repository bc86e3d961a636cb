"""The ladder for networks: rung by rung, from an influence step to training anew, until a model's policy is met.

    influence   one step under a trust region (`ml.forgetting.network`), judged by rows it was not made from
    warm        averaged descent on what is retained, from where the step has led, or from the posterior before
    retrain     training on what is retained from scratch, and brought to rest: the reference itself

There are no Newton steps between them: on a sample of the rows they mend training and do not forget (decision 7).

The descent is on the energy tilted to the slope that influence supposes. Down the retained energy itself it would go
on with training, which moves a network by more than the loss of a few rows does, and away from the reference.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ml.certify.network import certify_network
from ml.certify.retrained_network import certify_retrained_network
from ml.errors import InvalidInput
from ml.forgetting.groups import retained_rows
from ml.forgetting.network import OURS, check_posterior, forget_network
from ml.inference.averaged_descent import SAFE_SETTLING, Settling, settle
from ml.inference.bayes_by_backprop import SAFE_BNN, BayesByBackprop
from ml.inference.network_training import train_to_rest
from ml.ladder.climb import Climbed, Tried, Way, climb, silent
from ml.ladder.policy import Policy
from ml.ladder.variational import OnProgress, OnStep
from ml.models.network import Network
from ml.models.network_energy import NetworkEnergy, frozen_draws
from ml.posteriors.mean_field import MeanFieldGaussian
from vocabulary.rungs import RungName

# Descent after the step, of groups of any size, is a rung of its own.
_STEP_ALONE = replace(OURS, large_share=1.0)
_RETRAINING_SEED, _STEP_SEED, _DESCENT_SEED = 0, 1, 3
# Another one than those of the ways: the rows that judge must not be those that a way was made from.
_JUDGING_SEED = 2

Reached = Tried[MeanFieldGaussian]


def forget_trained_network(
    network: Network,
    posterior: MeanFieldGaussian,
    data: Tensor,
    forgotten: Tensor,
    policy: Policy,
    on_progress: OnProgress | None = None,
    on_step: OnStep | None = None,
    training: BayesByBackprop = SAFE_BNN,
    settling: Settling = SAFE_SETTLING,
) -> Climbed[MeanFieldGaussian]:
    """Remove the rows at positions `forgotten` of `data`, climbing until `policy` is met or its rungs are used up.

    A policy that demands "proved" leaves nothing but retraining, by `training` and `settling`: of a network all else is
    estimated. `on_step` is told after each rung, with the slope of the tilted energy in units of the widths: zero at
    the reference. After retraining, which has no tilt, it is the slope that training left over.
    """
    started = time.perf_counter()
    check_posterior(network, posterior)
    network.check_data(data)
    retained = retained_rows(data, forgotten)
    if len(retained) < OURS.draws:
        raise InvalidInput(
            f"{len(retained)} rows would be left, and forgetting on a network takes {OURS.draws} or more: delete the "
            "model instead"
        )
    report = on_progress or silent
    task = _Task(network, posterior, data, forgotten, retained, training, settling, report)
    ways: dict[RungName, Way[MeanFieldGaussian]] = {
        "influence": task.influence,
        "warm": task.warm,
        "retrain": task.retrain,
    }
    return climb(ways, policy, started, report, on_step)


@dataclass(frozen=True, eq=False)
class _Task:
    network: Network
    before: MeanFieldGaussian
    data: Tensor
    forgotten: Tensor
    retained: Tensor
    training: BayesByBackprop
    settling: Settling
    report: OnProgress

    def influence(self, _: Reached | None) -> Reached:
        generator = torch.Generator().manual_seed(_STEP_SEED)
        found = forget_network(self.network, self.before, self.data, self.forgotten, generator, _STEP_ALONE)
        return self._estimated(found.posterior, 1, "conjugate gradients")

    def warm(self, below: Reached | None) -> Reached:
        start, total = self.before if below is None else below.posterior, self.settling.iterations
        generator = torch.Generator().manual_seed(_DESCENT_SEED)
        energy = self._tilted(start.mean - self.before.mean)
        drift = settle(energy, generator, self.settling, lambda i: self.report("warm", i / total))
        return self._estimated(MeanFieldGaussian(start.mean + drift, start.std), total)

    def retrain(self, _: Reached | None) -> Reached:
        total = self.training.iterations + self.settling.iterations
        found = train_to_rest(
            self.network,
            self.retained,
            _RETRAINING_SEED,
            self.training,
            self.settling,
            lambda i: self.report("retrain", i / total),
        )
        certificate = certify_retrained_network(self.network, found, self.retained, _RETRAINING_SEED, total)
        return Tried(found, certificate, certificate.constants.residual, total)

    def _estimated(self, after: MeanFieldGaussian, steps: int, solver: str | None = None) -> Reached:
        judge = torch.Generator().manual_seed(_JUDGING_SEED)
        certificate = certify_network(self.network, self.before, after, self.data, self.forgotten, judge)
        return Tried(after, certificate, certificate.constants.gradient, steps, solver)

    def _tilted(self, gone: Tensor) -> _Tilted:
        draws, origin = frozen_draws(self.before, OURS.draws, seed=0), torch.zeros_like(gone)
        pull = NetworkEnergy(self.network, self.data, draws).misfit_gradient(origin, self.forgotten)
        every = torch.arange(len(self.retained), device=self.retained.device)
        left_over = NetworkEnergy(self.network, self.retained, draws).gradient(origin, every)
        return _Tilted(self.network, self.retained, draws + gone, left_over + pull)


@dataclass(frozen=True, eq=False)
class _Tilted(NetworkEnergy):
    """F̃(Δ) = F(Δ, R) - (∇F(0, R) + g)ᵀΔ of `ml.forgetting.network`; the draws may have gone a part of Δ already."""

    tilt: Tensor

    def estimate(self, drift: Tensor, batch_size: int, generator: torch.Generator) -> Tensor:
        return super().estimate(drift, batch_size, generator) - self.tilt.to(drift.dtype).dot(drift)
