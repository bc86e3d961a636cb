from __future__ import annotations

import uuid

from service.settings import Settings
from service.store.certificates.listing import (
    BoundFilter,
    find_bound_page,
    find_model_bounds_page,
    signed_predicate,
)
from service.store.database import Database
from service.store.paging import Window
from service.store.tables import Certificate
from tests import samples
from tests.service.routes.test_jobs import publish_sample


def epsilons(database: Database, bound_filter: BoundFilter, limit: int = 10) -> list[float]:
    with database.reading() as session:
        page = find_bound_page(session, bound_filter, Window(limit))
    return [bound.predicate.bound.epsilon for bound in page.items]


def test_bounds_are_filtered_paged_and_read_from_what_was_signed(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    ids = [publish_sample(settings, database, model_id, person, 10.0**-person) for person in (7, 8, 9)]
    assert epsilons(database, BoundFilter()) == [1e-9, 1e-8, 1e-7]
    assert epsilons(database, BoundFilter(), limit=2) == [1e-9, 1e-8]
    assert epsilons(database, BoundFilter(epsilon_above=1e-8)) == [1e-7]
    assert epsilons(database, BoundFilter(level="estimated")) == []
    assert epsilons(database, BoundFilter(model_id=uuid.uuid4())) == []
    with database.reading() as session:
        newest = session.get_one(Certificate, ids[-1])
        assert epsilons(database, BoundFilter(issued_from=newest.issued_at)) == [1e-9]
        assert epsilons(database, BoundFilter(issued_to=newest.issued_at)) == [1e-8, 1e-7]
        (bound,) = find_bound_page(session, BoundFilter(issued_from=newest.issued_at), Window(1)).items
        assert bound.last_rung.solver == "cholesky"
        assert signed_predicate(newest.bundle) == bound.predicate


def test_models_are_summarised_also_those_without_a_certificate(settings: Settings, database: Database) -> None:
    certified = samples.register_sample(settings, database)
    without = samples.register_sample(settings, database)
    for person, epsilon in ((1, 1e-8), (2, 4e-8), (3, 2e-8), (4, 1e-7)):
        publish_sample(settings, database, certified, person, epsilon)
    with database.reading() as session:
        summaries = {item.model_id: item for item in find_model_bounds_page(session, Window(10)).items}
    assert (summaries[without].count, summaries[without].median_epsilon) == (0, None)
    assert (summaries[certified].count, summaries[certified].worst_epsilon) == (4, 1e-7)
    assert summaries[certified].median_epsilon == (2e-8 + 4e-8) / 2
    assert summaries[certified].levels == {"proved": 4}
