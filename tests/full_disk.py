"""A full disk, without mounting one."""

from __future__ import annotations

from pathlib import Path

from service.store.artifacts.folder import ArtifactFolder
from service.store.artifacts.store import draft_name


def drafts_on_a_full_disk(_: ArtifactFolder, path: Path) -> Path:
    """Replacement for `ArtifactFolder._draft` whose files fail with the kernel's ENOSPC."""
    draft = path.with_name(draft_name(path.name))
    draft.symlink_to("/dev/full")
    return draft
