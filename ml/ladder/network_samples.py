"""Ladder for sample sets of networks.

    influence   the paper's map: one shift of all draws, with importance weights, where these can be afforded
    reweight    the draws stay; their weights divide the likelihood of the forgotten rows out
    temper      weights in stages, each followed by steps of HMC on all rows: for small networks
    retrain     chains on the retained rows, from a start that no row has influenced

Weights of moved draws need the likelihood of every row at every draw. That may cost more than new chains: then the rung
is not taken, and its record says so. Reweighting needs the forgotten rows only.

Costs are counted in forward passes of one row; a gradient costs three.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ml.certify.network_resampled import certify_resampled_network
from ml.certify.samples import CertifiedSamples, certify_moved, certify_reweighted, describe_wear
from ml.certify.tempered import certify_tempered
from ml.errors import NumericalFailure
from ml.forgetting.network import DEFAULT_RECIPE, forget_network_samples
from ml.forgetting.retained import retained_rows_of_samples
from ml.forgetting.samples import MovedSamples
from ml.forgetting.tempering import TemperConfig, expected_row_passes, temper
from ml.inference.chains import Chains
from ml.inference.diagnostics import Diagnostics
from ml.inference.network_chains import configure, sample_network
from ml.inference.network_diagnostics import diagnose_network
from ml.ladder.climb import Candidate, OnProgress, OnStep, Outcome, Progress, Rung, climb, conclude
from ml.ladder.policy import Policy
from ml.models.network import Network
from ml.posteriors.sample_set import SampleSet
from vocabulary.rungs import RungName

_SEED = 0
_PASSES_PER_GRADIENT = 3
# Descent after the shift is for groups too large for weights.
_SHIFT_ONLY = replace(DEFAULT_RECIPE, large_share=1.0)

_Samples = Candidate[SampleSet]


def forget(
    network: Network,
    posterior: SampleSet,
    data: Tensor,
    forgotten: Tensor,
    policy: Policy,
    on_progress: OnProgress | None = None,
    on_step: OnStep | None = None,
    chains: Chains | None = None,
) -> Outcome[SampleSet]:
    """Remove the rows at positions `forgotten` of `data`: climb until `policy` is met or its rungs are used up.

    Certificates of weights are estimates, so a policy that requires "proved" leaves nothing but new `chains`, by
    default those that suit the size of the network and its rows. The residual of a step is the estimated divergence
    from the reference, in nats.
    """
    progress = Progress(policy.seconds, on_progress, on_step)
    retained = retained_rows_of_samples(network, posterior.samples, data, forgotten)
    progress.report("diagnostics", 0.0)
    diagnostics = diagnose_network(network, posterior, data, reach=policy.epsilon)
    chains = chains or configure(network, len(retained))
    ladder = _Ladder(network, posterior, data, forgotten, retained, policy, progress, diagnostics, chains)
    candidate, records = climb(ladder.rungs(), policy, progress, strongest="estimated")
    return conclude(candidate, records, policy, progress)


@dataclass(frozen=True, eq=False)
class _Ladder:
    network: Network
    before: SampleSet
    data: Tensor
    forgotten: Tensor
    retained: Tensor
    policy: Policy
    progress: Progress
    diagnostics: Diagnostics
    chains: Chains

    def rungs(self) -> dict[RungName, Rung[_Samples]]:
        return {
            "influence": self.influence,
            "reweight": self.reweight,
            "temper": self.temper,
            "retrain": self.retrain,
        }

    def influence(self, _: _Samples | None) -> _Samples:
        """Shift all draws. Nothing is tried that could not be certified: the weights suppose draws of the posterior."""
        self._check_wear()
        if self.diagnostics.warning is not None:
            raise NumericalFailure(
                f"the weights of moved draws hold for draws of the posterior only: {self.diagnostics.warning}"
            )
        self._check_cost(len(self.before.samples) * (len(self.data) + len(self.retained)))
        generator = torch.Generator().manual_seed(_SEED)
        step = forget_network_samples(self.network, self.before, self.data, self.forgotten, generator, _SHIFT_ONLY)
        mean, drift = self.before.mean, step.posterior.samples[0] - self.before.samples[0]
        moved = MovedSamples(self.before.samples + drift, mean, mean + drift, 0.0, step.seconds)
        certified = certify_moved(
            self.network, self.before, moved, self.data, self.forgotten, self.diagnostics, self.policy.epsilon, _SEED
        )
        return self._weighed("influence", certified, "conjugate gradients")

    def reweight(self, _: _Samples | None) -> _Samples:
        """Weigh the draws, which stay: a limit of 0 has them read with their weights."""
        self._check_wear()
        certified = certify_reweighted(
            self.network,
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
        """Temper by exact moves, if that is cheaper than new chains and its draws could pass for the posterior's."""
        if self.diagnostics.warning is not None:
            raise NumericalFailure(
                f"tempered draws are certified as draws of the posterior only: {self.diagnostics.warning}"
            )
        expected = expected_row_passes(self.network, self.before, self.data, self.forgotten)
        affordable = self.chains.row_passes(len(self.retained))
        if expected > affordable:
            raise NumericalFailure(
                f"not taken: tempering needs {expected:.2g} gradients of a row, new chains {affordable:.2g}: allow the "
                "rung retrain"
            )
        generator, config = torch.Generator().manual_seed(_SEED), TemperConfig(max_row_passes=affordable)
        tempered = temper(
            self.network,
            self.before,
            self.data,
            self.forgotten,
            generator,
            config,
            lambda _, removed: self.progress.report("temper", removed),
        )
        diagnostics = diagnose_network(self.network, tempered.sample_set, self.retained)
        certificate = certify_tempered(tempered, diagnostics, len(self.data), len(self.retained))
        self.progress.step("temper", tempered.stages, certificate.constants.picked)
        failure = "; ".join(certificate.reasons) or None
        return Candidate(posterior=tempered.sample_set, certificate=certificate, steps=tempered.stages, failure=failure)

    def retrain(self, _: _Samples | None) -> _Samples:
        total = self.chains.iterations
        drawn = sample_network(
            self.network,
            self.retained,
            torch.Generator().manual_seed(_SEED),
            lambda iteration, _: self.progress.report("retrain", iteration / total),
            self.chains,
        )
        self.progress.step("retrain", total, 0.0)
        certificate = certify_resampled_network(drawn.diagnostics, len(self.retained))
        return Candidate(posterior=drawn.sample_set, certificate=certificate, steps=total)

    def _check_cost(self, passes: int) -> None:
        """Raise NumericalFailure if this many passes cost more than new chains would."""
        anew = _PASSES_PER_GRADIENT * self.chains.row_passes(len(self.retained))
        if passes > anew:
            raise NumericalFailure(
                f"not taken: weights of moved draws need {passes:.2g} passes of a row through the network, new chains "
                f"{anew:.2g}: allow the rung reweight or retrain"
            )

    def _check_wear(self) -> None:
        worn = describe_wear(self.before)
        if worn is not None:
            raise NumericalFailure(worn)

    def _weighed(self, rung: RungName, certified: CertifiedSamples, solver: str | None = None) -> _Samples:
        certificate = certified.certificate
        self.progress.step(rung, 1, certificate.constants.estimate)
        failure = "; ".join(certificate.reasons) or None
        return Candidate(posterior=certified.sample_set, certificate=certificate, solver=solver, failure=failure)
