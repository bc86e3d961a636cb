"""Ladder for networks.

    influence   one step within a trust region (`ml.forgetting.network`), judged on rows that did not make it
    warm        descent on all retained rows, from the candidate below or else from the stored posterior
    retrain     training on the retained rows from scratch, until it is at rest: the reference itself

A rung that would cost more than retraining is not tried if the policy allows retraining (`ml.ladder.network_costs`).
Large networks get no estimate, so only retraining is left for them (`ml.certify.network.certificate`).

There are no Newton steps: on a sample of the rows they continue training instead of forgetting (decision 7).

The descent minimises the energy tilted to the slope that influence supposes. On the retained energy itself it would
continue training, which moves a network more than losing a few rows does, and away from the reference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ml.certify.network.certificate import TOO_LARGE, certify_network
from ml.certify.network.retrained import certify_retrained_network
from ml.errors import InvalidInput, NumericalFailure
from ml.forgetting.network import DEFAULT_RECIPE, forget_network
from ml.forgetting.retained import retained_positions, retained_rows
from ml.inference.averaged_descent import SAFE_AVERAGED_DESCENT, AveragedDescent
from ml.inference.bayes_by_backprop import SAFE_BNN, BayesByBackprop
from ml.inference.network_training import train_to_convergence
from ml.inference.tilted_descent import DescentLimits, descend_tilted
from ml.ladder.climb import Candidate, OnProgress, OnStep, Outcome, Progress, Rung, climb, conclude
from ml.ladder.network_costs import NetworkCosts, network_costs
from ml.ladder.policy import Policy
from ml.models.network import Network
from ml.models.network_energy import can_be_read_whole, frozen_energy
from ml.models.tilted_energy import TiltedEnergy
from ml.posteriors.mean_field import MeanFieldGaussian
from vocabulary.rungs import RungName

# Descent after the step is a rung of its own, for groups of any size.
STEP_ONLY = replace(DEFAULT_RECIPE, large_share=1.0)
_SMALL_DESCENT = DescentLimits(rounds=20, products=100, nats=1e-4)
_RETRAINING_SEED, _STEP_SEED = 0, 1
# Differs from the seeds of the rungs: rows that judge must not be those that a rung used.
_JUDGING_SEED = 2

_Weights = Candidate[MeanFieldGaussian]


def forget(
    network: Network,
    posterior: MeanFieldGaussian,
    data: Tensor,
    forgotten: Tensor,
    policy: Policy,
    on_progress: OnProgress | None = None,
    on_step: OnStep | None = None,
    training: BayesByBackprop = SAFE_BNN,
    descent: AveragedDescent = SAFE_AVERAGED_DESCENT,
) -> Outcome[MeanFieldGaussian]:
    """Remove the rows at positions `forgotten` of `data`: climb until `policy` is met or its rungs are used up.

    Certificates of networks are estimates, so a policy that requires "proved" leaves nothing but retraining, by
    `training` and `descent`. The residual of a step is the slope of the tilted energy in units of the widths: zero at
    the reference. After retraining, which has no tilt, it is the slope left by training.
    """
    progress = Progress(policy.seconds, on_progress, on_step)
    network.check_posterior(posterior)
    network.check_data(data)
    retained = retained_rows(data, forgotten)
    if len(retained) < DEFAULT_RECIPE.draws:
        raise InvalidInput(
            f"{len(retained)} rows would be left, and forgetting on a network takes {DEFAULT_RECIPE.draws} or more: "
            "delete the model instead"
        )
    costs = network_costs(network, len(data), len(forgotten), training, descent) if "retrain" in policy.rungs else None
    ladder = _Ladder(network, posterior, data, forgotten, retained, progress, training, descent, costs)
    candidate, records = climb(ladder.rungs(), policy, progress, strongest="estimated")
    return conclude(candidate, records, policy, progress)


def descend_retained(
    network: Network, before: MeanFieldGaussian, data: Tensor, forgotten: Tensor, start: MeanFieldGaussian
) -> MeanFieldGaussian:
    """Return `start` with its means at the minimum of the tilted energy of all retained rows that descent reaches."""
    energy = frozen_energy(network, before, data)
    pull = energy.misfit_gradient(torch.zeros_like(before.mean), forgotten)
    retained = retained_positions(data, forgotten)
    tilted = TiltedEnergy(energy, retained, pull)
    descent = descend_tilted(tilted, start.mean - before.mean, before.std, _SMALL_DESCENT)
    return MeanFieldGaussian(before.mean + descent.drift, start.std)


@dataclass(frozen=True, eq=False)
class _Ladder:
    network: Network
    before: MeanFieldGaussian
    data: Tensor
    forgotten: Tensor
    retained: Tensor
    progress: Progress
    training: BayesByBackprop
    descent: AveragedDescent
    costs: NetworkCosts | None

    def rungs(self) -> dict[RungName, Rung[_Weights]]:
        return {"influence": self.influence, "warm": self.warm, "retrain": self.retrain}

    def influence(self, _: _Weights | None) -> _Weights:
        self._refuse_if_dear("influence")
        generator = torch.Generator().manual_seed(_STEP_SEED)
        step = forget_network(self.network, self.before, self.data, self.forgotten, generator, STEP_ONLY)
        return self._estimated("influence", step.posterior, 1, "conjugate gradients")

    def warm(self, below: _Weights | None) -> _Weights:
        self._refuse_if_dear("warm")
        start = self.before if below is None else below.posterior
        after = descend_retained(self.network, self.before, self.data, self.forgotten, start)
        return self._estimated("warm", after, 1, "conjugate gradients")

    def retrain(self, _: _Weights | None) -> _Weights:
        total = self.training.iterations + self.descent.iterations
        posterior = train_to_convergence(
            self.network,
            self.retained,
            _RETRAINING_SEED,
            self.training,
            self.descent,
            lambda i: self.progress.report("retrain", i / total),
        )
        certificate = certify_retrained_network(self.network, posterior, self.retained, _RETRAINING_SEED, total)
        self.progress.step("retrain", total, certificate.constants.residual)
        return Candidate(posterior=posterior, certificate=certificate, steps=total)

    def _refuse_if_dear(self, rung: Literal["influence", "warm"]) -> None:
        if not can_be_read_whole(self.network, len(self.data)):
            raise NumericalFailure(TOO_LARGE)
        times = 0.0 if self.costs is None else self.costs.relative(rung)
        if times > 1:
            raise NumericalFailure(f"it would take about {times:.1f} times as long as retraining, and was not tried")

    def _estimated(self, rung: RungName, after: MeanFieldGaussian, steps: int, solver: str | None = None) -> _Weights:
        generator = torch.Generator().manual_seed(_JUDGING_SEED)
        certificate = certify_network(self.network, self.before, after, self.data, self.forgotten, generator)
        self.progress.step(rung, steps, certificate.constants.gradient)
        return Candidate(posterior=after, certificate=certificate, steps=steps, solver=solver)
