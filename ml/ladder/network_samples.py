"""Ladder for sample sets of networks.

    influence   the paper's map: one shift of all draws, with importance weights, where these can be afforded
    reweight    the draws stay; their weights divide the likelihood of the forgotten rows out
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
from ml.errors import NumericalFailure
from ml.forgetting.network import SAMPLES_RECIPE, forget_network_samples
from ml.forgetting.retained import retained_rows_of_samples
from ml.forgetting.samples import MovedSamples
from ml.inference.chains import SAFE_BNN_SGLD, Chains, sample
from ml.inference.diagnostics import Diagnostics
from ml.inference.network_diagnostics import diagnose_network
from ml.ladder.climb import Candidate, OnProgress, OnStep, Outcome, Progress, Rung, climb, conclude
from ml.ladder.policy import Policy
from ml.models.network import Network
from ml.posteriors.sample_set import SampleSet
from vocabulary.rungs import RungName

_SEED = 0
_PASSES_PER_GRADIENT = 3
# Descent after the shift would go on with training, which is not forgetting.
_SHIFT_ONLY = replace(SAMPLES_RECIPE, large_share=1.0)

_Samples = Candidate[SampleSet]


def forget(
    network: Network,
    posterior: SampleSet,
    data: Tensor,
    forgotten: Tensor,
    policy: Policy,
    on_progress: OnProgress | None = None,
    on_step: OnStep | None = None,
    chains: Chains = SAFE_BNN_SGLD,
) -> Outcome[SampleSet]:
    """Remove the rows at positions `forgotten` of `data`: climb until `policy` is met or its rungs are used up.

    Certificates of weights are estimates, so a policy that requires "proved" leaves nothing but new `chains`. The
    residual of a step is the estimated divergence from the reference, in nats.
    """
    progress = Progress(policy.seconds, on_progress, on_step)
    retained = retained_rows_of_samples(network, posterior.samples, data, forgotten)
    progress.report("diagnostics", 0.0)
    diagnostics = diagnose_network(network, posterior, data, reach=policy.epsilon)
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
        return {"influence": self.influence, "reweight": self.reweight, "retrain": self.retrain}

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

    def retrain(self, _: _Samples | None) -> _Samples:
        start, generator = self.network.initial(_SEED).mean, torch.Generator().manual_seed(_SEED)
        drawn = sample(self.network, self.retained, start, self._affordable_chains, generator)
        diagnostics = diagnose_network(self.network, drawn.sample_set, self.retained)
        self.progress.step("retrain", self.chains.iterations, 0.0)
        certificate = certify_resampled_network(diagnostics, len(self.retained))
        return Candidate(posterior=drawn.sample_set, certificate=certificate, steps=self.chains.iterations)

    @property
    def _affordable_chains(self) -> Chains:
        """The chains, with batches of at most all rows."""
        size = self.chains.batch_size
        return self.chains if size is None else replace(self.chains, batch_size=min(size, len(self.retained)))

    def _check_cost(self, passes: int) -> None:
        """Raise NumericalFailure if this many passes cost more than new chains would."""
        chains = self._affordable_chains
        anew = _PASSES_PER_GRADIENT * chains.count * chains.iterations * (chains.batch_size or len(self.retained))
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
