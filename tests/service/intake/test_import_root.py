from __future__ import annotations

import os
from pathlib import Path

import pytest

from service.intake.import_root import read_parts
from service.store.errors import InvalidRegistration

SECRET = b"a secret beside the root"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_bytes(SECRET)
    root = tmp_path / "root"
    (root / "folder").mkdir(parents=True)
    (root / "folder" / "file").write_bytes(b"content")
    (root / "empty").touch()
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "link-inside").symlink_to(root / "folder" / "file")
    (root / "way-out").symlink_to(tmp_path)
    os.mkfifo(root / "pipe")
    return root


def test_files_below_the_root_are_copied(root: Path) -> None:
    parts = read_parts(root, {"records": "folder/file", "posterior": "./folder//file", "subjects": "empty"}, 100)
    (root / "folder" / "file").write_bytes(b"changed since")
    assert {name: part[:] for name, part in parts.items()} == {
        "records": b"content",
        "posterior": b"content",
        "subjects": b"",
    }


def test_the_root_itself_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(root)
    assert read_parts(tmp_path / "linked", {"records": "folder/file"}, 100)["records"][:] == b"content"


OUTSIDE = [
    "../secret",
    "folder/../../secret",
    "folder/../folder/file",
    "/etc/hostname",
    "link",
    "link-inside",
    "way-out/secret",
    "folder",
    "pipe",
    ".",
    "missing",
    "folder/file/deeper",
    "nul\0byte",
    "",
]


@pytest.mark.parametrize("relative", OUTSIDE)
@pytest.mark.timeout(10)
def test_everything_else_is_refused_alike(root: Path, relative: str) -> None:
    with pytest.raises(InvalidRegistration) as refused:
        read_parts(root, {"records": relative}, 100)
    assert refused.value.field == "location.records"
    assert str(refused.value) == "no readable file at this path under the import root (symbolic links are not followed)"


def test_the_limit_is_for_all_files_together(root: Path) -> None:
    both = {"posterior": "folder/file", "records": "folder/file"}
    assert len(read_parts(root, both, 14)) == 2
    with pytest.raises(InvalidRegistration, match="larger than the 13 bytes") as refused:
        read_parts(root, both, 13)
    assert refused.value.field == "location.records"
