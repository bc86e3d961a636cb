from __future__ import annotations

from collections.abc import Iterator

import pytest

from service.settings import Settings
from worker.workshop import Workshop


@pytest.fixture
def workshop(settings: Settings) -> Iterator[Workshop]:
    opened = Workshop.open(settings)
    yield opened
    opened.database.close()
