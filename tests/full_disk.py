"""A disk without room, for whoever may not mount one."""

from __future__ import annotations

from pathlib import Path

from service.store.artifacts.folder import ArtifactFolder
from service.store.artifacts.store import draft_name


def drafts_on_a_full_disk(_: ArtifactFolder, path: Path) -> Path:
    """In the place of `ArtifactFolder._draft`: whatever is written there gets the kernel's own ENOSPC."""
    draft = path.with_name(draft_name(path.name))
    draft.symlink_to("/dev/full")
    return draft
