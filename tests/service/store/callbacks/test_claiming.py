"""Which callbacks a sender claims: in turn by caller, each once, and never more than its slots hold."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import event, insert

from service.settings import Settings
from service.store.callbacks.claiming import ClaimedCallback, claim_callbacks
from service.store.callbacks.slots import Slots
from service.store.database import Database
from service.store.tables import Callback
from tests import samples

NOBODY = 999


@pytest.fixture
def deletion_id(settings: Settings, database: Database) -> uuid.UUID:
    return samples.request_deletion(settings, database, NOBODY).deletion.id


def enqueue(database: Database, deletion_id: uuid.UUID, caller: str, count: int, host: str | None = None) -> None:
    """Write unsent callbacks to URLs of their own, on one host or on one each."""
    base = int.from_bytes(uuid.uuid4().bytes[:2])
    hosts = [host or f"{caller}-{number}.example" for number in range(count)]
    rows = [
        {"deletion_id": deletion_id, "sequence": base * 1000 + number, "caller": caller, "host": name}
        | {"url": f"https://{name}/{base}/{number}", "message": {}}
        for number, name in enumerate(hosts)
    ]
    with database.writing() as session:
        session.execute(insert(Callback), rows)


def claim(database: Database, slots: Slots) -> Sequence[ClaimedCallback]:
    with database.writing() as session:
        claims = claim_callbacks(session, slots, lease_seconds=60)
    for callback in claims:
        slots.take(callback.caller, callback.host)
    return claims


def callers(claims: Sequence[ClaimedCallback]) -> Counter[str]:
    return Counter(callback.caller for callback in claims)


def test_one_caller_with_many_callbacks_leaves_slots_to_others(database: Database, deletion_id: uuid.UUID) -> None:
    slots = Slots(total=10, per_caller=6, per_host=6, reserved=2)
    enqueue(database, deletion_id, "a", 50)
    assert callers(claim(database, slots)) == {"a": 6}
    assert claim(database, slots) == []
    enqueue(database, deletion_id, "b", 50)
    assert callers(claim(database, slots)) == {"b": 2}
    enqueue(database, deletion_id, "c", 1)
    assert callers(claim(database, slots)) == {"c": 1}


def test_a_slow_host_does_not_block_the_other_hosts_of_its_caller(database: Database, deletion_id: uuid.UUID) -> None:
    slots = Slots(total=20, per_caller=10, per_host=2, reserved=2)
    enqueue(database, deletion_id, "a", 30, host="slow.example")
    enqueue(database, deletion_id, "a", 3)
    claims = [*claim(database, slots), *claim(database, slots)]
    assert Counter(callback.host == "slow.example" for callback in claims) == {True: 2, False: 3}


def test_concurrent_senders_claim_different_rows(database: Database, deletion_id: uuid.UUID) -> None:
    enqueue(database, deletion_id, "a", 12)
    with ThreadPoolExecutor(4) as pool:
        claims = [
            callback.id
            for claimed in pool.map(lambda _: claim(database, Slots(per_caller=4)), range(8))
            for callback in claimed
        ]
    assert len(claims) == len(set(claims)) == 12


def test_a_claim_takes_statements_by_the_number_of_callers(database: Database, deletion_id: uuid.UUID) -> None:
    for caller in "abc":
        enqueue(database, deletion_id, caller, 200)
    statements: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    assert claim(database, Slots())
    assert len([statement for statement in statements if statement.startswith("SELECT")]) <= 2 * 3 + 4
