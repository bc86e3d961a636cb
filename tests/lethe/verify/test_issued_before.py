"""Statements issued earlier still verify. `issued_before/` holds bundles made at commit eeb8e5a (2026-11-17)."""

from __future__ import annotations

from pathlib import Path

import pytest

from lethe.verify import verify

FOLDER = Path(__file__).parent / "issued_before"
KEYS = FOLDER / "lethe-keys.json"
BUNDLES = sorted(path for path in FOLDER.glob("*.json") if path != KEYS)


def test_every_kind_of_statement_is_there() -> None:
    assert {path.stem.split("-")[0] for path in BUNDLES} == {"absence", "certificate", "receipt"}
    assert len(BUNDLES) == 14


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda path: path.stem)
def test_a_statement_issued_before_still_verifies(bundle: Path) -> None:
    assert verify(bundle.read_bytes(), KEYS.read_bytes()).checks
