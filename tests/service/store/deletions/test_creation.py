from __future__ import annotations

import uuid
from dataclasses import replace

from sqlalchemy import delete, func, select

from service.settings import Settings
from service.store.database import Database
from service.store.deletions.creation import (
    NO_SUBJECT_HELD,
    NOT_IN_SEARCHED_MODELS,
    RECORDS_ERASED,
    Stored,
    store_deletions,
)
from service.store.deletions.requests import DeletionRequest, OpenDsrReference
from service.store.deletions.views import DeletionView, NamedRecord, find_view
from service.store.errors import IdempotencyMismatch, NotFound
from service.store.signing.keys import open_signer
from service.store.tables import Absence, AuditEntry, Deletion, DeletionTarget, PendingAbsence, Record
from tests import samples
from tests.service.store.certificates.test_statements import predicate_of

STRANGER = 999
REFERENCE = OpenDsrReference("acme", uuid.UUID(int=1), bytes)


def request(settings: Settings, *people: int, window_seconds: float = 0.0) -> DeletionRequest:
    lookups = [samples.lookup(settings, person) for person in people]
    return DeletionRequest("acme", "gdpr", lookups, None, "request-1", window_seconds)


def store(settings: Settings, database: Database, *requests: DeletionRequest) -> Stored:
    signer = open_signer(settings, database)
    with database.writing() as session:
        return store_deletions(session, requests, signer)


def test_a_deletion_waits_in_every_model_that_holds_the_subject(settings: Settings, database: Database) -> None:
    model_ids = {samples.register_sample(settings, database) for _ in range(2)}
    stored = store(settings, database, request(settings, 1))
    (view,) = stored.outcomes
    assert isinstance(view, DeletionView)
    assert stored.work.model_ids == model_ids == {target.model_id for target in view.targets}
    assert stored.work.wait_seconds == 0
    assert (view.deletion.status, view.deletion.outcome) == ("pending", None)
    with database.reading() as session:
        assert find_view(session, view.deletion.id, "acme").commitments == view.commitments


def test_until_it_is_binding_nothing_that_its_caller_sees_depends_on_who_is_held(
    settings: Settings, database: Database
) -> None:
    model_id = samples.register_sample(settings, database)
    people = (1, STRANGER)
    stored = store(settings, database, *(request(settings, person, window_seconds=60.0) for person in people))
    for outcome in stored.outcomes:
        assert isinstance(outcome, DeletionView)
        deletion = outcome.deletion
        assert (deletion.status, deletion.completed_at) == ("pending", None)
        assert (outcome.targets, outcome.is_concealed) == ((), True)
        with database.reading() as session:
            assert find_view(session, deletion.id, "acme").is_concealed
            assert not find_view(session, deletion.id, caller=None).is_concealed
    assert stored.work.model_ids == {model_id}
    with database.reading() as session:
        target, absence = session.scalars(select(DeletionTarget)).one(), session.scalars(select(PendingAbsence)).one()
    assert target.not_before == absence.binding_at == stored.work.due_at
    assert 30 <= stored.work.wait_seconds <= 60


def test_a_token_reaches_only_its_models(settings: Settings, database: Database) -> None:
    allowed, other = (samples.register_sample(settings, database) for _ in range(2))
    limited = replace(request(settings, 1), allowed_models=frozenset([allowed]))
    assert store(settings, database, limited).work.model_ids == {allowed}
    unknown = uuid.uuid4()
    refused = store(
        settings,
        database,
        replace(limited, model_ids=[other]),
        replace(limited, model_ids=[unknown]),
        replace(limited, lookups=[], records=[NamedRecord(other, 1)]),
        replace(limited, lookups=[], records=[NamedRecord(unknown, 1)]),
    ).outcomes
    texts = [str(outcome).replace(str(other), "id").replace(str(unknown), "id") for outcome in refused]
    assert [type(outcome) for outcome in refused] == [NotFound] * 4
    assert (texts[0], texts[2]) == (texts[1], texts[3])


def test_only_the_named_models_are_reached(settings: Settings, database: Database) -> None:
    first, _ = (samples.register_sample(settings, database) for _ in range(2))
    stored = store(settings, database, replace(request(settings, 1), model_ids=[first]))
    assert stored.work.model_ids == {first}


def test_an_absence_says_which_models_were_searched(settings: Settings, database: Database) -> None:
    """The subject may be in others."""
    first, _ = sorted(samples.register_sample(settings, database) for _ in range(2))
    with database.writing() as session:
        session.execute(delete(Record).where(Record.model_id == first))
    stored = store(
        settings,
        database,
        replace(request(settings, 1), model_ids=[first]),
        replace(request(settings, 1), allowed_models=frozenset([first])),
        request(settings, STRANGER),
    )
    with database.reading() as session:
        bundles = {row.deletion_id: row.bundle for row in session.scalars(select(Absence))}
    predicates = [predicate_of(bundles[view.deletion.id]) for view in stored.outcomes if isinstance(view, DeletionView)]
    for predicate in predicates[:2]:
        assert (predicate["models"], predicate["models_in_store"]) == ([str(first)], 1)
        assert predicate["statement"] == NOT_IN_SEARCHED_MODELS
    assert "models" not in predicates[2]
    assert (predicates[2]["statement"], predicates[2]["models_in_store"]) == (NO_SUBJECT_HELD, 2)


def test_without_anything_to_forget_a_deletion_is_complete(settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    stored = store(settings, database, request(settings, STRANGER))
    (view,) = stored.outcomes
    assert isinstance(view, DeletionView)
    assert (view.deletion.status, view.deletion.outcome) == ("completed", NO_SUBJECT_HELD)
    assert view.deletion.completed_at == view.deletion.received_at
    assert stored.work.model_ids == frozenset()
    with database.reading() as session:
        actions = session.scalars(select(AuditEntry.action).where(AuditEntry.concerns == str(view.deletion.id)))
        assert sorted(actions) == ["absence.certified", "deletion.completed", "deletion.received"]


def test_erased_records_leave_nothing_to_forget(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    with database.writing() as session:
        session.delete(session.get_one(Record, (model_id, 3)))
    erased = replace(request(settings), records=[NamedRecord(model_id, 3)])
    (view,) = store(settings, database, erased).outcomes
    assert isinstance(view, DeletionView)
    assert view.deletion.outcome == RECORDS_ERASED


def test_a_request_with_an_unknown_name_is_refused_alone(settings: Settings, database: Database) -> None:
    model_id, unknown = samples.register_sample(settings, database), uuid.uuid4()
    last = samples.PEOPLE * samples.ROWS_EACH - 1
    requests = [
        replace(request(settings, 1), model_ids=[unknown]),
        replace(request(settings), records=[NamedRecord(model_id, last), NamedRecord(model_id, last + 1)]),
        replace(request(settings), model_ids=[unknown], records=[NamedRecord(model_id, 1)]),
        replace(request(settings), records=[NamedRecord(model_id, last)]),
    ]
    *refused, accepted = store(settings, database, *requests).outcomes
    assert [type(outcome) for outcome in refused] == [NotFound] * 3
    assert str(refused[1]).startswith("records.1 ")
    assert isinstance(accepted, DeletionView)
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(Deletion)) == 1


def test_an_opendsr_request_is_stored_once_also_within_one_list(settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    repeated = replace(request(settings, 1), opendsr=REFERENCE)
    changed = replace(repeated, content=b"another")
    elsewhere = replace(repeated, caller="umbrella", opendsr=replace(REFERENCE, caller="umbrella"))
    first, second, refused, other = store(settings, database, repeated, repeated, changed, elsewhere).outcomes
    assert first is second
    assert isinstance(first, DeletionView)
    assert isinstance(refused, IdempotencyMismatch)
    assert isinstance(other, DeletionView)
    assert other.deletion.id != first.deletion.id
    later = store(settings, database, repeated)
    (view,) = later.outcomes
    assert isinstance(view, DeletionView)
    assert view.deletion.id == first.deletion.id
    assert [target.model_id for target in view.targets] == [model_id]
    assert later.work.model_ids == frozenset()
