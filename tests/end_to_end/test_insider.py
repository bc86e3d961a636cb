"""An insider with the whole database, its files, a backup, the log, all certificates and all secrets guesses people.

Whoever was erased, or was asked for and never held, must look like somebody of whom Lethe never heard.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import insert, select

from service.settings import Settings, new_key
from service.store.access.identity_keys import add_key
from service.store.database import Database
from service.store.erasure_traces import TraceClearer
from service.store.states import Role
from service.store.tables import Base, Deletion, RequestBody, Subject
from tests import samples
from tests.database_files import read_files
from tests.insider import Insider, Loot
from tests.service.conftest import Api, serving
from worker.absences import settle_all
from worker.context import WorkerContext
from worker.forget import forget_pending

pytestmark = pytest.mark.slow

DELETIONS = "/api/v1/deletions"
ERASED, HELD, ABSENT, DECOY = "person-3@example.org", "person-5@example.org", "ada@a.example", "bob@a.example"
GUESSABLE_KEY = "order of the archive"
NATIVE = '{"subjects": [{"identity_type": "email", "identity_value": "PERSON"}]}'
WITH_OTHERS = '{"subjects":[{"identity_type":"email","identity_value":"PERSON"}],"regulation":"ccpa"}'
OPENDSR = (
    '{"subject_request_id": "SUBJECT_REQUEST_ID", "subject_request_type": "erasure", "regulation": "gdpr", '
    '"submitted_time": "2026-11-15T15:00:00Z", "subject_identities": [{"identity_type": "email", '
    '"identity_value": "PERSON", "identity_format": "raw"}], "api_version": "2.0"}'
)
BULK = f"{NATIVE}\n{WITH_OTHERS}\n"


class Requests:
    """Requests about a person by every contract, with random and with guessable keys."""

    def __init__(self) -> None:
        self.bodies = {NATIVE, WITH_OTHERS, BULK}
        self._keys = iter(str(number) for number in range(100))

    def send(self, api: Api, person: str) -> None:
        self._post(api, DELETIONS, NATIVE, person, str(uuid.uuid4()))
        self._post(api, DELETIONS, WITH_OTHERS, person, f"{GUESSABLE_KEY} {next(self._keys)}")
        self._post(api, f"{DELETIONS}/bulk", BULK, person, f"{GUESSABLE_KEY} {next(self._keys)}")
        self._post(api, f"{DELETIONS}/bulk", BULK, person, str(uuid.uuid4()))
        opendsr = OPENDSR.replace("SUBJECT_REQUEST_ID", str(uuid.uuid4()))
        self._post(api, "/v2/requests", opendsr, person)

    def _post(self, api: Api, path: str, body: str, person: str, key: str | None = None) -> None:
        self.bodies.add(body)
        headers = {"Content-Type": "application/json", **({"Idempotency-Key": key} if key else {})}
        answer = api.call(Role.COMPLIANCE, "POST", path, headers=headers, content=body.replace("PERSON", person))
        assert answer.is_success, answer.text


@pytest.fixture
def rotated(settings: Settings) -> Settings:
    """The same settings after a rotation of the identity key."""
    assert settings.identity_key is not None
    keys = f"{settings.identity_key.get_secret_value()},{new_key()}"
    return settings.model_copy(update={"identity_key": SecretStr(keys)})


@pytest.fixture
def insider(settings: Settings, rotated: Settings, database: Database) -> Insider:
    """Somebody who comes after requests about two people, before and after a rotation, and after the erasure."""
    requests, old = Requests(), samples.hasher(settings)
    with serving(settings, database) as api:
        model_id = samples.register_sample(settings, database)
        requests.send(api, ERASED)
        requests.send(api, ABSENT)
    with database.writing() as session:
        add_key(session, old, rotated.identity_keys()[-1], actor="operator")
    with serving(rotated, database) as api:
        requests.send(api, ERASED)
        _forget(rotated, database, model_id)
        requests.send(api, ERASED)  # somebody asks again
        requests.send(api, ABSENT)
    _forget(rotated, database, model_id)
    return _take_everything(rotated, database, requests)


def test_an_erased_and_an_absent_person_look_like_anybody(insider: Insider) -> None:
    assert insider.confirm(HELD)  # otherwise the insider is a bad one
    assert insider.confirm(ERASED) == insider.confirm(ABSENT) == insider.confirm(DECOY) == set()


def test_the_insider_would_find_a_body_under_the_identity_key(
    settings: Settings, rotated: Settings, database: Database
) -> None:
    """That is how bodies used to be stored."""
    macs = {samples.hasher(settings).mac(body.replace("PERSON", ERASED).encode()) for body in (NATIVE, BULK)}
    with database.writing() as session:
        session.execute(insert(RequestBody), [{"id": uuid.uuid4(), "salt": bytes(32), "mac": mac} for mac in macs])
    insider = _take_everything(rotated, database, Requests())
    assert insider.confirm(ERASED) == macs
    assert insider.confirm(DECOY) == set()


def _forget(settings: Settings, database: Database, model_id: uuid.UUID) -> None:
    context = WorkerContext.open(settings)
    while forget_pending(context, model_id):
        pass
    settle_all(database, context.signer)
    context.doorbell.close()
    context.database.close()
    with database.reading() as session:
        assert set(session.scalars(select(Deletion.status))) == {"completed"}
    TraceClearer(database).clear()


def _take_everything(settings: Settings, database: Database, requests: Requests) -> Insider:
    secrets = [
        *settings.identity_keys(),
        settings.signing_key_bytes(),
        settings.log_key_bytes(),
        *(path.read_bytes() for path in sorted((settings.data_dir / "opendsr").glob("*"))),
        *(f"{GUESSABLE_KEY} {number}".encode() for number in range(20)),
    ]
    with database.reading() as session:
        deletion_ids = session.scalars(select(Deletion.id)).all()
        held_keys = session.scalars(select(Subject.key)).all()
    content = b"\n".join([*_tables(database), *_artifacts(settings.data_dir), read_files(database)])
    bodies = sorted(requests.bodies)
    return Insider(Loot(content), [*secrets, *held_keys], settings.identity_keys(), deletion_ids, bodies)


def _tables(database: Database) -> Iterator[bytes]:
    """Yield every value of every table, as a backup holds them: bytes also in hex, and what bundles encode."""
    with database.engine.connect() as connection:
        for table in Base.metadata.sorted_tables:
            for value in (value for row in connection.execute(select(table)) for value in row):
                if isinstance(value, bytes):
                    yield value
                    yield from (value[start : start + 32].hex().encode() for start in range(0, len(value), 32))
                else:
                    yield json.dumps(value, default=str).encode()
                if isinstance(value, str) and '"payload"' in value:
                    yield from _payloads(value)


def _payloads(text: str) -> Iterator[bytes]:
    """Yield the signed statements in a bundle, a receipt or an answer."""
    for part in text.replace("\\", "").split('"payload":')[1:]:
        encoded = part.strip().strip('"').partition('"')[0].strip()
        yield base64.b64decode(encoded + "=" * (-len(encoded) % 4))


def _artifacts(folder: Path) -> Iterator[bytes]:
    yield from (path.read_bytes() for path in folder.rglob("*") if path.is_file())
