"""The verifier as one file: a zip of `lethe/verify` that runs on any Python with `cryptography`."""

from __future__ import annotations

import zipfile
from pathlib import Path

import lethe.verify

PACKAGE = "lethe_verify"
MAIN = f"import sys\nfrom {PACKAGE}.__main__ import main\nsys.exit(main())\n"
FILE_TIME = (1980, 1, 1, 0, 0, 0)
"""Fixed, so that the same sources give the same bytes and a digest can be published."""


def write_verifier(path: Path) -> None:
    """Write the archive and make it executable."""
    folder = Path(lethe.verify.__file__).parent
    sources = {f"{PACKAGE}/{source.name}": source.read_text() for source in sorted(folder.glob("*.py"))}
    with path.open("wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in {**sources, "__main__.py": MAIN}.items():
                archive.writestr(zipfile.ZipInfo(name, FILE_TIME), text)
    path.chmod(0o755)
