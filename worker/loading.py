"""A version of a model as it is worked on: its files read, checked against their digests, and brought to the device."""

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
from ml.models.network import Network
from ml.posteriors.sample_set import SampleSet
from service.store.artifacts.store import ArtifactStore
from service.store.datasets.dataset import Dataset, stored_dataset

SMALL_DATASET = 1_000_000
"""Numbers in a data set below which a second thread costs more than it saves, and on a busy machine fifty times more:
each operation then waits until the other thread is let onto a core."""


Posterior = ml.MeanFieldGaussian | SampleSet


@dataclass(frozen=True, eq=False)
class LoadedModel:
    family: ml.Family | Network
    posterior: Posterior
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
    """Read a version. Sets the number of threads to what its data set is worth."""
    device, dataset = ml.pick_device(), stored_dataset(artifacts.get(model_id, dataset_digest))
    built, never_seen = ml.build(family, config), None
    torch.set_num_threads(_threads(built, dataset))
    if never_seen_digest is not None:
        never_seen = load(artifacts.get(model_id, never_seen_digest))["x"].to(device)
    return LoadedModel(
        built,
        _posterior(posterior_kind, artifacts.get(model_id, posterior_digest)).to(device),
        dataset,
        torch.from_numpy(dataset.arrays["x"]).to(device),
        never_seen,
    )


def _threads(family: ml.Family | Network, dataset: Dataset) -> int:
    """One for networks too: they read a few rows at a time, however many there are."""
    numbers = sum(array.size for array in dataset.arrays.values())
    return 1 if numbers < SMALL_DATASET or isinstance(family, Network) else os.cpu_count() or 1


def _posterior(kind: str, content: bytes) -> Posterior:
    return SampleSet.from_bytes(content) if kind == "samples" else ml.MeanFieldGaussian.from_bytes(content)
