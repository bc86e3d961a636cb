from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import SecretStr

from service.settings import Settings
from service.store.database import Database
from tests.faults.bench import Bench, open_bench
from tests.s3_server import BUCKET, S3Server


@dataclass(frozen=True)
class Storage:
    """Settings with an artifact store, and the folder of its bucket if it is one."""

    settings: Settings
    bucket: Path | None


@pytest.fixture(params=["folder"])
def storage(request: pytest.FixtureRequest, settings: Settings) -> Storage:
    """Files in the data folder, or with the parameter `s3` under a prefix of their own in a bucket."""
    if request.param == "folder":
        return Storage(settings, None)
    server: S3Server = request.getfixturevalue("s3")
    prefix = str(uuid.uuid4())
    url = SecretStr(f"s3://{BUCKET}/{prefix}")
    return Storage(settings.model_copy(update={"artifact_url": url}), server.folder / prefix)


@pytest.fixture
def bench(storage: Storage, database: Database, tmp_path: Path) -> Iterator[Bench]:
    with open_bench(storage.settings, database, storage.bucket, tmp_path / "workers.log") as opened:
        yield opened
