"""`lethe model`: look at a model's files before it is registered, and bring it to convergence."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from ml.certify.readiness import Readiness, check_network, check_samples, check_variational
from ml.errors import InvalidInput
from ml.inference.network_training import bring_to_rest
from ml.inference.variational import train
from ml.models import build
from ml.models.network import Network
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.posteriors.sample_set import SampleSet


@dataclass(frozen=True, eq=False)
class ModelFiles:
    """The parts of a registration: the manifest's family and configuration, the posterior, the training rows."""

    family: Any
    posterior: MeanFieldGaussian | SampleSet
    data: Tensor

    @classmethod
    def read(cls, manifest: Path, posterior: Path, records: Path) -> ModelFiles:
        family, config, kind = _manifest(manifest)
        return cls(build(family, config), _posterior(posterior, kind), _rows(records))

    def check(self) -> Readiness:
        if isinstance(self.posterior, SampleSet):
            return check_samples(self.family, self.posterior, self.data)
        if isinstance(self.family, Network):
            return check_network(self.family, self.posterior, self.data)
        return check_variational(self.family, self.posterior, self.data)

    def polish(self, on_step: Callable[[int], None]) -> MeanFieldGaussian:
        """The posterior at the optimum of its basin; a network's means, brought to rest."""
        if isinstance(self.posterior, SampleSet):
            raise InvalidInput(
                "samples cannot be polished: run the chains longer, as `lethe model check` advises, and register those"
            )
        if isinstance(self.family, Network):
            generator = torch.Generator().manual_seed(0)
            return bring_to_rest(self.family, self.posterior, self.data, generator, on_step=on_step)
        return train(self.family, self.data, self.posterior, on_step=lambda step, _: on_step(step)).posterior


def _manifest(path: Path) -> tuple[str, dict[str, Any], str | None]:
    try:
        manifest = json.loads(path.read_text())
        return str(manifest["family"]), dict(manifest["config"]), manifest.get("posterior")
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(
            f"{path} is not a manifest ({error!r}): write JSON with family and config, as for registration"
        ) from None


def _posterior(path: Path, kind: str | None) -> MeanFieldGaussian | SampleSet:
    content, found = path.read_bytes(), "samples" if "samples" in _tensors(path) else "variational"
    if kind not in (None, found):
        raise InvalidInput(f'{path} holds a posterior of kind {found}: say so in the manifest, "posterior": "{found}"')
    return SampleSet.from_bytes(content) if found == "samples" else MeanFieldGaussian.from_bytes(content)


def _rows(path: Path) -> Tensor:
    tensors = _tensors(path)
    if "x" not in tensors:
        raise InvalidInput(f"{path} holds the tensors {sorted(tensors)}: save the training rows as 'x'")
    return tensors["x"]


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load(path.read_bytes())
    except SafetensorError as error:
        raise InvalidInput(f"{path} is not a readable safetensors file ({error})") from None
