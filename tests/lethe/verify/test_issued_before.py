"""Statements issued earlier still verify. `issued_before/` holds bundles made at commit eeb8e5a (2026-11-17)."""

from __future__ import annotations

from pathlib import Path

import pytest

from lethe.verify import Unconfirmed, verify

FOLDER = Path(__file__).parent / "issued_before"
KEYS = FOLDER / "lethe-keys.json"
BUNDLES = sorted(path for path in FOLDER.glob("*.json") if path != KEYS)


def test_every_kind_of_statement_is_there() -> None:
    assert {path.stem.split("-")[0] for path in BUNDLES} == {"absence", "certificate", "receipt"}
    assert len(BUNDLES) == 14


@pytest.mark.parametrize("bundle", [path for path in BUNDLES if path.stem != "absence"], ids=lambda path: path.stem)
def test_a_statement_issued_before_still_verifies(bundle: Path) -> None:
    assert verify(bundle.read_bytes(), KEYS.read_bytes()).checks


def test_an_absence_downloaded_before_it_was_in_the_log_is_genuine_so_far() -> None:
    with pytest.raises(Unconfirmed, match="does not show its place in the log yet") as missing:
        verify((FOLDER / "absence.json").read_bytes(), KEYS.read_bytes())
    assert missing.value.so_far.kind == "certificate of absence"
