from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import redis
from sqlalchemy import func, select, update
from sqlalchemy.exc import OperationalError

from service.intake.ringing import Ringer
from service.intake.submission import Intake, Submission, single_submission
from service.settings import Settings
from service.store.access.identity_keys import open_hasher
from service.store.batches.doorbell import Doorbell
from service.store.database import Database
from service.store.deletions.creation import Outcome
from service.store.deletions.idempotency import DELETION, KeyUse
from service.store.deletions.opendsr import OpenDsrReference
from service.store.deletions.requests import DeletionRequest
from service.store.deletions.views import DeletionView
from service.store.errors import IdempotencyMismatch, NotFound, SecretMismatch
from service.store.signing.keys import open_signer
from service.store.tables import Deletion, IdempotencyKey, SecretCheck, Subject
from tests import samples
from tests.waiting import wait_until

KEY = KeyUse("acme", "key", DELETION, b"content", bytes, bytes)


@pytest.fixture
def intake(settings: Settings, database: Database) -> Iterator[Intake]:
    ringer = Ringer(Doorbell(settings.broker, database))
    signer = open_signer(settings, database)
    check = open_hasher(settings, database).check
    intake = Intake(database, check, signer, ringer, wait_seconds=5.0)
    yield intake
    intake.close()
    ringer.close()


@pytest.fixture
def queue(settings: Settings) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(settings.broker.replace("redis+socket://", "unix://")) as client:
        client.delete("lethe.cpu")
        yield client
        client.delete("lethe.cpu")


def request(
    settings: Settings, person: int, reference: OpenDsrReference | None = None, model_id: uuid.UUID | None = None
) -> DeletionRequest:
    model_ids = [model_id] if model_id else None
    lookups = [samples.lookup(settings, person)]
    return DeletionRequest("acme", "gdpr", lookups, model_ids, "request-1", 60.0, opendsr=reference)


def single(deletion_request: DeletionRequest, key: KeyUse | None = None) -> Submission:
    return single_submission(deletion_request, lambda view: str(view.deletion.id), key)


def submit_all(intake: Intake, *submissions: Submission) -> list[str | BaseException]:
    async def scenario() -> list[str | BaseException]:
        return await asyncio.gather(*map(intake.submit, submissions), return_exceptions=True)

    return asyncio.run(scenario())


def count(database: Database, table: type[Deletion] | type[IdempotencyKey]) -> int:
    with database.reading() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def test_an_answer_means_that_the_deletion_is_committed(settings: Settings, database: Database, intake: Intake) -> None:
    answers = submit_all(intake, *(single(request(settings, person)) for person in range(5)))
    with database.reading() as session:
        stored = set(map(str, session.scalars(select(Deletion.id))))
    assert set(answers) == stored
    assert len(stored) == 5


def test_a_refused_request_does_not_affect_the_others(settings: Settings, database: Database, intake: Intake) -> None:
    refused = single(request(settings, 1, model_id=uuid.uuid4()), KEY)
    first, error, last = submit_all(intake, single(request(settings, 1)), refused, single(request(settings, 2)))
    assert isinstance(error, NotFound)
    assert isinstance(first, str)
    assert isinstance(last, str)
    assert (count(database, Deletion), count(database, IdempotencyKey)) == (2, 0)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_person_whose_erasure_is_being_published_holds_up_no_other(
    settings: Settings, database: Database, intake: Intake
) -> None:
    samples.register_sample(settings, database)
    held = select(Subject.id).where(Subject.lookup == samples.lookup(settings, 1)).with_for_update()
    submissions = [single(request(settings, person)) for person in (2, 1, 3, 4)]  # the first is in a group of its own
    with database.writing() as publisher:
        publisher.execute(held)
        started = time.monotonic()
        answers = submit_all(intake, *submissions)
        assert time.monotonic() - started < 5
    assert [isinstance(answer, str) for answer in answers] == [True, False, True, True]
    assert isinstance(answers[1], OperationalError)
    assert count(database, Deletion) == 3


def test_a_repeated_key_gets_the_first_answer(settings: Settings, database: Database, intake: Intake) -> None:
    first, second = submit_all(intake, *(single(request(settings, 1), KEY) for _ in range(2)))
    assert submit_all(intake, single(request(settings, 1), KEY)) == [first] == [second]
    (error,) = submit_all(intake, single(request(settings, 1), replace(KEY, content=b"another")))
    assert isinstance(error, IdempotencyMismatch)
    assert count(database, Deletion) == 1


def test_a_bulk_is_stored_and_answered_as_a_whole(settings: Settings, database: Database, intake: Intake) -> None:
    def write(outcomes: Sequence[Outcome]) -> str:
        return " ".join("stored" if isinstance(outcome, DeletionView) else "refused" for outcome in outcomes)

    requests = [request(settings, 1), request(settings, 2, model_id=uuid.uuid4()), request(settings, 3)]
    bulk = Submission(requests, write, KEY)
    assert submit_all(intake, bulk, bulk) == ["stored refused stored"] * 2
    assert submit_all(intake, Submission([], write)) == [""]
    assert count(database, Deletion) == 2


def test_an_opendsr_request_sent_many_times_at_once_is_one_deletion(
    settings: Settings, database: Database, intake: Intake
) -> None:
    samples.register_sample(settings, database)
    reference = OpenDsrReference("acme", uuid.uuid4(), bytes)
    answers = submit_all(intake, *(single(request(settings, 1, reference)) for _ in range(5)))
    assert len(set(answers)) == 1
    assert isinstance(answers[0], str)
    (error,) = submit_all(intake, single(replace(request(settings, 1, reference), content=b"another")))
    assert isinstance(error, IdempotencyMismatch)
    assert count(database, Deletion) == 1


def test_two_processes_that_store_the_same_opendsr_request_agree(settings: Settings, database: Database) -> None:
    """Each finds no such request; the second to insert it starts again and finds that of the first."""
    samples.register_sample(settings, database)
    reference = OpenDsrReference("acme", uuid.uuid4(), bytes)
    signer = open_signer(settings, database)
    ringers = [Ringer(Doorbell(settings.broker, database)) for _ in range(2)]
    check = open_hasher(settings, database).check
    intakes = [Intake(database, check, signer, ringer, 5.0) for ringer in ringers]

    async def scenario() -> list[str]:
        submission = single(request(settings, 1, reference))
        return await asyncio.gather(*(intake.submit(submission) for intake in intakes))

    first, second = asyncio.run(scenario())
    for resource in (*intakes, *ringers):
        resource.close()
    assert first == second
    assert count(database, Deletion) == 1


def test_the_doorbell_is_rung_for_new_work_only(
    settings: Settings, database: Database, intake: Intake, queue: redis.Redis
) -> None:
    samples.register_sample(settings, database)
    nobody, reference = 999, OpenDsrReference("acme", uuid.uuid4(), bytes)
    submit_all(intake, single(request(settings, nobody)))
    assert queue.llen("lethe.cpu") == 0
    submit_all(intake, single(request(settings, 1, reference)))
    wait_until(lambda: queue.llen("lethe.cpu") == 1, "the doorbell is rung")
    submit_all(intake, single(request(settings, 1, reference)))
    time.sleep(0.05)
    assert queue.llen("lethe.cpu") == 1


def test_a_process_with_another_identity_key_stores_and_signs_nothing(
    settings: Settings, database: Database, intake: Intake
) -> None:
    """The key was rotated while the process was running."""
    with database.writing() as session:
        session.execute(update(SecretCheck).values(value=b"v" * 32))
    (error,) = submit_all(intake, single(request(settings, 1), KEY))
    assert isinstance(error, SecretMismatch)
    assert "LETHE_IDENTITY_KEY" in str(error)
    assert count(database, Deletion) == 0
