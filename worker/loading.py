"""Loading of a model version: read its files, check their digests, move its tensors to the device."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

import ml
from ml.certify.importance import relative_ess
from ml.kinds import gains_from_threads
from ml.posteriors.sample_set import SampleSet
from service.store.artifacts.store import ArtifactStore
from service.store.batches.lifecycle import Claim
from service.store.datasets.dataset import Dataset, load_dataset
from service.store.models.registry import DrawCount

SMALL_DATASET = 1_000_000
"""Numbers in a data set below which a second thread costs more than it saves. On a busy machine it costs fifty times
more, since each operation waits until the other thread gets a core."""


@dataclass(frozen=True, eq=False)
class LoadedModel:
    model: ml.Model
    posterior: ml.Posterior
    dataset: Dataset
    rows: Tensor
    never_seen: Tensor | None


def load_model(
    artifacts: ArtifactStore,
    model_id: uuid.UUID,
    family: str,
    posterior_kind: str,
    config: Mapping[str, Any],
    posterior_digest: str,
    dataset_digest: str,
    never_seen_digest: str | None = None,
) -> LoadedModel:
    """Load a version. Also sets the number of threads that suits its model and data set."""
    device, dataset = ml.pick_device(), load_dataset(artifacts.get(model_id, dataset_digest))
    model, never_seen = ml.build(family, config), None
    torch.set_num_threads(_threads(model, dataset))
    if never_seen_digest is not None:
        never_seen = load(artifacts.get(model_id, never_seen_digest))["x"].to(device)
    return LoadedModel(
        model,
        ml.read_posterior(posterior_kind, artifacts.get(model_id, posterior_digest)).to(device),
        dataset,
        torch.from_numpy(dataset.arrays["x"]).to(device),
        never_seen,
    )


def draw_count(posterior: ml.Posterior) -> DrawCount | None:
    """Return how many draws a sample set has, and how many even ones they are worth. None for other posteriors."""
    if not isinstance(posterior, SampleSet):
        return None
    total = len(posterior.samples)
    return DrawCount(total, total * relative_ess(posterior.log_weights))


def load_claimed(artifacts: ArtifactStore, claim: Claim) -> LoadedModel:
    """Load the version that a batch replaces."""
    digests = claim.posterior_digest, claim.dataset_digest, claim.never_seen_digest
    return load_model(artifacts, claim.model_id, claim.family, claim.posterior_kind, claim.config, *digests)


def _threads(model: ml.Model, dataset: Dataset) -> int:
    numbers = sum(array.size for array in dataset.arrays.values())
    return (os.cpu_count() or 1) if numbers >= SMALL_DATASET and gains_from_threads(model) else 1
