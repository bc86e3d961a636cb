from __future__ import annotations

import os
import zipfile
from pathlib import Path

import lethe.verify
from lethe.verifier_archive import write_verifier


def test_the_archive_is_executable_and_holds_the_sources(tmp_path: Path) -> None:
    path = tmp_path / "lethe-verify.pyz"
    write_verifier(path)
    assert os.access(path, os.X_OK)
    assert path.read_bytes().startswith(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        sources = {source.name: source.read_text() for source in Path(lethe.verify.__path__[0]).glob("*.py")}
        assert names == {"__main__.py", *(f"lethe_verify/{name}" for name in sources)}
        assert archive.read("lethe_verify/bundle.py").decode() == sources["bundle.py"]


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first.pyz", tmp_path / "second.pyz"
    write_verifier(first)
    write_verifier(second)
    assert first.read_bytes() == second.read_bytes()
