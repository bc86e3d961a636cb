"""Software that issues certificates: its version, and a digest of its sources."""

from __future__ import annotations

import functools
import hashlib
from importlib.metadata import version
from pathlib import Path

from vocabulary.certificate import Software

PACKAGES = ("lethe", "migrations", "ml", "service", "vocabulary", "worker")


@functools.cache
def software() -> Software:
    """Return the running version. The digest is the SHA-256 of the lines `<SHA-256 of the file>  <path>` of all sources
    in order, as computed by
    `find lethe migrations ml service vocabulary worker -name '*.py' | LC_ALL=C sort | xargs sha256sum | sha256sum`.
    """
    root = Path(__file__).parents[3]
    names = sorted(path.relative_to(root).as_posix() for name in PACKAGES for path in (root / name).rglob("*.py"))
    lines = [f"{hashlib.sha256((root / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    return Software(name="lethe", version=version("lethe"), sources_sha256=digest)
