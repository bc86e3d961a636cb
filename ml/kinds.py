"""Kinds of posterior: the one module that chooses by kind how to forget, check and polish.

variational   mean-field Gaussian of a family with closed forms
samples       draws of a chain, for any model
network       mean-field Gaussian of a network's weights
ensemble      members of a network, each trained on people of its own
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from ml.certify.ensemble import check_ensemble
from ml.certify.network_sample_readiness import check_network_samples
from ml.certify.readiness import Readiness
from ml.certify.sample_readiness import check_samples
from ml.errors import InvalidInput
from ml.inference.network_training import converge_means
from ml.inference.variational import train
from ml.ladder import ensemble, network, network_samples, samples, variational
from ml.ladder.climb import OnProgress, OnStep, Outcome
from ml.ladder.ensemble import TrainMembers
from ml.ladder.network_readiness import check_network
from ml.ladder.policy import Policy
from ml.ladder.variational_readiness import check_variational
from ml.models import Model
from ml.models.family import Family
from ml.models.network import Network
from ml.posteriors.ensemble import Ensemble
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.posteriors.sample_set import SampleSet
from vocabulary.posterior_kinds import POSTERIOR_TENSORS, PosteriorKind
from vocabulary.references import DEFAULT_REFERENCE, Reference

Posterior = MeanFieldGaussian | SampleSet | Ensemble
AnyPosterior = TypeVar("AnyPosterior", bound=Posterior)
OnIteration = Callable[[int], None]

_STORED: Mapping[str, type[MeanFieldGaussian] | type[SampleSet] | type[Ensemble]] = {
    "variational": MeanFieldGaussian,
    "samples": SampleSet,
    "ensemble": Ensemble,
}


def forget(
    model: Model,
    posterior: AnyPosterior,
    data: Tensor,
    forgotten: Tensor,
    policy: Policy,
    on_progress: OnProgress | None = None,
    on_step: OnStep | None = None,
    train_members: TrainMembers | None = None,
) -> Outcome[AnyPosterior]:
    """Remove the rows at positions `forgotten` of `data`: climb the ladder until `policy` is met or it ends.

    `on_progress(phase, fraction)` is called before each step and at the end, `on_step` after each step. The members of
    an ensemble are trained again by `train_members`, if given. The ladders in `ml.ladder` take further options.
    """
    arguments = (model, posterior, data, forgotten, policy, on_progress, on_step)
    if isinstance(posterior, Ensemble):
        return _kind(model, posterior).forget(*arguments, train_members)
    return _kind(model, posterior).forget(*arguments)


def readiness(
    model: Model,
    posterior: Posterior,
    data: Tensor,
    epsilon: float | None = None,
    reference: Reference = DEFAULT_REFERENCE,
) -> Readiness:
    """Report which certificates a posterior allows now, and how to improve them.

    `epsilon` and `reference` are the policy's. A network is ready if restarts find nothing lower than epsilon would
    notice, its sample set if deletions can be certified against the reference.
    """
    kind = _kind(model, posterior)
    if kind is _NETWORK:
        return kind.readiness(model, posterior, data, epsilon)
    if kind is _NETWORK_SAMPLES:
        return kind.readiness(model, posterior, data, reference)
    return kind.readiness(model, posterior, data)


def polish(
    model: Model, posterior: AnyPosterior, data: Tensor, on_iteration: OnIteration | None = None
) -> AnyPosterior:
    """Return the posterior at the optimum of its basin; for a network, with its means at rest."""
    polished: AnyPosterior = _kind(model, posterior).polish(model, posterior, data, on_iteration)
    return polished


def read_posterior(kind: str, content: bytes) -> Posterior:
    """Read a stored posterior of this kind."""
    return _STORED[kind].from_bytes(content)


def stored_kind(tensors: Iterable[str]) -> PosteriorKind:
    """Return the kind of a stored posterior, by the names of its tensors."""
    names = set(tensors)
    for kind in ("samples", "ensemble"):
        if names & set(POSTERIOR_TENSORS[kind]):
            return kind
    return "variational"


def gains_from_threads(model: Model) -> bool:
    """Return False for networks: they read a few rows at a time, too few for a second thread to pay."""
    return not isinstance(model, Network)


@dataclass(frozen=True)
class _Kind:
    forget: Callable[..., Outcome[Any]]
    readiness: Callable[..., Readiness]
    polish: Callable[..., Any]


def _kind(model: Model, posterior: Posterior) -> _Kind:
    if isinstance(posterior, SampleSet):
        return _NETWORK_SAMPLES if isinstance(model, Network) else _SAMPLES
    if isinstance(posterior, Ensemble):
        if not isinstance(model, Network):
            raise InvalidInput("only networks have ensembles: train and register variational parameters of this family")
        return _ENSEMBLE
    return _NETWORK if isinstance(model, Network) else _VARIATIONAL


def _polish_variational(
    family: Family, posterior: MeanFieldGaussian, data: Tensor, on_iteration: OnIteration | None
) -> MeanFieldGaussian:
    def report(iteration: int, _length: float) -> None:
        if on_iteration is not None:
            on_iteration(iteration)

    return train(family, data, posterior, on_step=report).posterior


def _polish_samples(_model: Model, _posterior: SampleSet, _data: Tensor, _on_iteration: OnIteration | None) -> Any:
    raise InvalidInput(
        "samples cannot be polished: run the chains longer, as `lethe model check` advises, and register those"
    )


def _polish_ensemble(_model: Network, _posterior: Ensemble, _data: Tensor, _on_iteration: OnIteration | None) -> Any:
    raise InvalidInput("an ensemble is not polished: its recipe makes it. Train it again with `lethe train ensemble`")


def _polish_network(
    model: Network, posterior: MeanFieldGaussian, data: Tensor, on_iteration: OnIteration | None
) -> MeanFieldGaussian:
    generator = torch.Generator().manual_seed(0)
    return converge_means(model, posterior, data, generator, on_step=on_iteration)


_VARIATIONAL = _Kind(variational.forget, check_variational, _polish_variational)
_SAMPLES = _Kind(samples.forget, check_samples, _polish_samples)
_NETWORK_SAMPLES = _Kind(network_samples.forget, check_network_samples, _polish_samples)
_ENSEMBLE = _Kind(ensemble.forget, check_ensemble, _polish_ensemble)
_NETWORK = _Kind(network.forget, check_network, _polish_network)
