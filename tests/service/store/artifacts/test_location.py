from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from pydantic import SecretStr

from service.settings import ConfigurationError, Settings
from service.store.artifacts.bucket import ArtifactBucket
from service.store.artifacts.folder import ArtifactFolder
from service.store.artifacts.location import open_artifacts

MODEL = uuid.uuid4()


def at(tmp_path: Path, url: str | None) -> Settings:
    url_or_none = None if url is None else SecretStr(url)
    return Settings(_env_file=None, data_dir=tmp_path, artifact_url=url_or_none)  # type: ignore[call-arg]


@pytest.mark.parametrize("url", [None, ""])
def test_by_default_artifacts_are_in_the_data_folder(tmp_path: Path, url: str | None) -> None:
    digest = open_artifacts(at(tmp_path, url)).put(MODEL, b"content")
    assert (tmp_path / "artifacts" / str(MODEL) / digest).read_bytes() == b"content"


def test_a_file_url_opens_a_folder(tmp_path: Path) -> None:
    store = open_artifacts(at(tmp_path / "data", f"file://{tmp_path}/a%20share"))
    assert isinstance(store, ArtifactFolder)
    digest = store.put(MODEL, b"content")
    assert (tmp_path / "a share" / str(MODEL) / digest).read_bytes() == b"content"


def test_the_environment_sets_the_location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LETHE_ARTIFACT_URL", "memory://lethe")
    settings = Settings(_env_file=None, data_dir=tmp_path)  # type: ignore[call-arg]
    assert isinstance(open_artifacts(settings), ArtifactBucket)


def test_a_url_that_cannot_be_opened_is_named_and_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="LETHE_ARTIFACT_URL") as caught:
        open_artifacts(at(tmp_path, "nowhere://user:hidden@host/"))
    assert "hidden" not in str(caught.value)
