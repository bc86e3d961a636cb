"""Artifact stores of this process, each opened once: a client of S3 takes half a second."""

from __future__ import annotations

from service.settings import Settings
from service.store.artifacts.location import open_artifacts
from service.store.artifacts.store import ArtifactStore

_opened: dict[str, ArtifactStore] = {}


def artifact_store(settings: Settings) -> ArtifactStore:
    location = settings.artifact_url.get_secret_value() if settings.artifact_url else str(settings.artifact_dir)
    if location not in _opened:
        _opened[location] = open_artifacts(settings)
    return _opened[location]
