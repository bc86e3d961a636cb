from __future__ import annotations

from pathlib import Path

import pytest

from lethe.verify.files import printable, verify_files, write_ending
from tests.bundles import POSTERIOR, key_list
from tests.corpus.drafts import Draft, certificate, receipt


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    path.write_bytes(key_list())
    return path


def write(keys: Path, draft: Draft) -> Path:
    path = keys.parent / "bundle.json"
    path.write_bytes(draft.write())
    return path


def test_each_outcome_has_its_code(keys: Path) -> None:
    code, facts = verify_files(write(keys, certificate()), keys)
    assert (code, facts["outcome"], write_ending(code, facts)) == (0, "verified", ("verified", ""))
    code, facts = verify_files(write(keys, certificate(issued_at="2020-01-01T00:00:00Z")), keys)
    assert (code, facts["outcome"]) == (1, "rejected")
    assert write_ending(code, facts) == ("rejected", ": the certificate was issued before its request was received")
    code, facts = verify_files(write(keys, receipt().change(is_logged=False)), keys)
    assert (code, facts["outcome"], facts["verified"], facts["kind"]) == (3, "unconfirmed", False, "receipt")
    assert write_ending(code, facts)[0] == "not verified yet"


@pytest.mark.parametrize("start", [b"%PDF-1.7\n", b"<!DOCTYPE html>\n<html>", b"\n<!doctype html>"])
def test_a_printed_form_is_told_from_the_signed_one(keys: Path, start: bytes) -> None:
    printed = keys.parent / "certificate.pdf"
    printed.write_bytes(start + b"certificate")
    code, facts = verify_files(printed, keys)
    assert code == 2
    assert "certificate.pdf is the printed form, which carries no signature: pass the .json file" in facts["reason"]


def test_files_beside_the_bundle_are_read(keys: Path) -> None:
    bundle, posterior, later = write(keys, certificate()), keys.parent / "model", keys.parent / "later.json"
    posterior.write_bytes(POSTERIOR)
    later.write_bytes(certificate().later(12))
    code, facts = verify_files(bundle, keys, posterior, later)
    assert code == 0
    assert "the model file matches that version" in facts["checks"][-1]
    posterior.write_bytes(b"another")
    assert verify_files(bundle, keys, posterior)[0] == 1


@pytest.mark.parametrize("unreadable", ["bundle", "keys", "posterior", "later"])
def test_a_file_that_cannot_be_read_has_a_code_of_its_own(keys: Path, unreadable: str) -> None:
    files = {"bundle": write(keys, certificate()), "keys": keys}
    for path in (keys.parent / "nowhere", keys.parent):
        code, facts = verify_files(**{**files, unreadable: path})
        assert (code, facts["outcome"]) == (2, "unreadable")
        assert facts["reason"].startswith(f"cannot read {path}: ")


def test_a_file_is_read_no_further_than_it_would_be_refused(keys: Path) -> None:
    with (keys.parent / "sparse.json").open("wb") as file:
        file.truncate(1 << 40)
    code, facts = verify_files(keys.parent / "sparse.json", keys)
    assert (code, facts["reason"]) == (1, "the file is too large to be a bundle")


def test_control_characters_are_not_printed() -> None:
    assert printable("é \x1b[2J\r\n\u202e\ud800") == "é \ufffd[2J\ufffd\ufffd\ufffd\ufffd"
