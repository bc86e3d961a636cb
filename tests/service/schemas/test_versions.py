from __future__ import annotations

import pytest

from service.schemas.versions import version_out
from service.settings import Settings
from service.store.database import Database
from service.store.models.registry import find_version_page
from service.store.paging import Window
from tests import samples


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_current_version_is_neither_superseded_nor_destroyed(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    with database.reading() as session:
        (view,) = find_version_page(session, model_id, Window(10)).items
        version = version_out(view)
    assert (version.number, version.record_count) == (1, samples.PEOPLE * samples.ROWS_EACH)
    assert (version.superseded_at, version.posterior_destroyed_at) == (None, None)
    assert (version.posterior_sha256, version.dataset_sha256) == (
        view.version.posterior_digest,
        view.version.dataset_digest,
    )
