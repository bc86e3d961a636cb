"""`lethe model`: check a model's files before registration, and polish its posterior."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

import ml
from ml.kinds import stored_kind
from service.store.access.identities import Identity
from vocabulary.references import DEFAULT_REFERENCE, Reference


@dataclass(frozen=True, eq=False)
class ModelFiles:
    """Files of a registration: the model that the manifest describes, its posterior and the training rows.

    `epsilon` and `reference` are those of the manifest's policy, if it has one.
    """

    model: ml.Model
    posterior: ml.Posterior
    data: Tensor
    epsilon: float | None = None
    reference: Reference = DEFAULT_REFERENCE

    @classmethod
    def read(cls, manifest: Path, posterior: Path, records: Path) -> ModelFiles:
        family, config, kind, policy = _manifest(manifest)
        terms = policy.get("epsilon"), policy.get("reference", DEFAULT_REFERENCE)
        return cls(ml.build(family, config), _posterior(posterior, kind), read_rows(records), *terms)

    def check(self) -> ml.Readiness:
        return ml.readiness(self.model, self.posterior, self.data, self.epsilon, self.reference)

    def polish(self, on_iteration: Callable[[int], None]) -> ml.Posterior:
        return ml.polish(self.model, self.posterior, self.data, on_iteration)


def _manifest(path: Path) -> tuple[str, dict[str, Any], str | None, dict[str, Any]]:
    """Return family, configuration, kind of posterior and policy; the last two may be missing."""
    try:
        manifest = json.loads(path.read_text())
        policy = dict(manifest.get("policy") or {})
        return str(manifest["family"]), dict(manifest["config"]), manifest.get("posterior"), policy
    except (ValueError, KeyError, TypeError) as error:
        raise ml.InvalidInput(
            f"{path} is not a manifest ({error!r}): write JSON with family and config, as for registration"
        ) from None


def _posterior(path: Path, kind: str | None) -> ml.Posterior:
    stored = stored_kind(_tensors(path))
    if kind not in (None, stored):
        raise ml.InvalidInput(
            f'{path} holds a posterior of kind {stored}: say so in the manifest, "posterior": "{stored}"'
        )
    return ml.read_posterior(stored, path.read_bytes())


def read_owners(path: Path) -> list[str]:
    """Read the owner of each row, in the spelling under which the service finds people."""
    try:
        items = json.loads(path.read_text())
        return [Identity(item["identity_type"], item["identity_value"]).canonical for item in items]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ml.InvalidInput(
            f"{path} is not a list of subjects ({type(error).__name__}): write JSON, for each row an object with "
            "identity_type and identity_value"
        ) from None


def read_rows(path: Path) -> Tensor:
    """Read the training rows."""
    tensors = _tensors(path)
    if "x" not in tensors:
        raise ml.InvalidInput(f"{path} holds the tensors {sorted(tensors)}: save the training rows as 'x'")
    return tensors["x"]


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load(path.read_bytes())
    except SafetensorError as error:
        raise ml.InvalidInput(f"{path} is not a readable safetensors file ({error})") from None
