"""Callbacks from a status change to a receiver that verifies their signatures."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from sqlalchemy import select, text, update

from service.settings import Settings
from service.settings.callback_targets import NOT_PUBLIC
from service.store.batches.lifecycle import claim_batch
from service.store.callbacks import outbox
from service.store.callbacks.claiming import claim_callbacks
from service.store.callbacks.slots import Slots
from service.store.database import Database
from service.store.deletions.creation import store_deletions
from service.store.deletions.requests import DeletionRequest, OpenDsrReference
from service.store.errors import KeyInactive
from service.store.signing import processor_identity
from service.store.signing.keys import retire
from service.store.signing.processor_identity import ProcessorIdentity
from service.store.tables import AuditEntry, Callback, Deletion, SigningKey, now
from tests import samples
from tests.receiver import Received, Receiver, run_receiver
from tests.waiting import wait_until
from worker.callbacks.sender import LONGEST_DELAY, Sender, retry_delay, run_callbacks
from worker.context import WorkerContext
from worker.forget import forget_pending
from worker.sweep import run_sweep

NOBODY = 999
SUBJECT_REQUEST = uuid.UUID("a7551968-d5d6-44b2-9831-815ac9017798")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with run_receiver() as running:
        yield running


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Settings without retries within a test: `make_due` moves the clock."""
    changes = {"callback_allow": "127.0.0.0/8", "callback_base_seconds": 1000.0, "callback_attempts": 2}
    return settings.model_copy(update={**changes, "callback_timeout_seconds": 15.0})


@pytest.fixture
def sender(settings: Settings) -> Iterator[Sender]:
    opened = Sender.open(settings)
    yield opened
    opened.close()


def send_due(sender: Sender) -> int:
    """Send the callbacks of one claim and return their number."""
    claims = sender.claim()

    async def send_all() -> None:
        await asyncio.gather(*map(sender.send, claims))

    asyncio.run(send_all())
    return len(claims)


def make_due(database: Database) -> None:
    with database.writing() as session:
        session.execute(update(Callback).values(not_before=now(), lease_expires_at=None))


def rows(database: Database) -> Sequence[Callback]:
    with database.reading() as session:
        return session.scalars(select(Callback).order_by(Callback.sequence)).all()


def bodies(receiver: Receiver) -> list[Any]:
    return [json.loads(received.body) for received in receiver.received]


def verify_signature(sender: Sender, received: Received) -> None:
    """Verify a callback as docs/reference/callbacks.md describes."""
    kind, body = b"application/vnd.lethe.callback.v1+json", received.body
    signed = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(body), body)
    key = load_pem_public_key(sender.writer.signer.public_pem.encode())
    assert isinstance(key, Ed25519PublicKey)
    key.verify(base64.b64decode(received.headers["X-Lethe-Signature"]), signed)
    assert received.headers["X-Lethe-Key-Id"] == sender.writer.signer.key_id


def test_a_deletion_is_followed_to_its_certificate(
    settings: Settings, database: Database, context: WorkerContext, sender: Sender, receiver: Receiver
) -> None:
    model_id = samples.register_sample(settings, database)
    deletion = samples.request_deletion(
        settings, database, 1, callback_urls=[receiver.url("/hook?key=secret")]
    ).deletion
    assert send_due(sender) == 0
    forget_pending(context, model_id)
    assert [send_due(sender) for _ in range(3)] == [1, 1, 0]  # in sequence, never at the same time
    first, last = bodies(receiver)
    assert (first["status"], first["sequence"], first["certificates"]) == ("running", 1, [])
    assert (last["status"], last["sequence"], last["absence"]) == ("completed", 2, None)
    assert last["deletion_id"] == str(deletion.id)
    assert last["deletion"] == f"/api/v1/deletions/{deletion.id}"
    assert last["due_at"] == deletion.due_at.isoformat().replace("+00:00", "Z")
    assert len(last["certificates"]) == 1
    assert last["certificates"][0].startswith("/api/v1/certificates/")
    assert [first["id"], last["id"]] == [str(row.id) for row in rows(database)]
    for received in receiver.received:
        assert received.path == "/hook?key=secret"
        verify_signature(sender, received)


def test_a_failed_attempt_is_retried_before_later_callbacks(
    settings: Settings, database: Database, context: WorkerContext, sender: Sender, receiver: Receiver
) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 1, callback_urls=[receiver.url()])
    forget_pending(context, model_id)
    receiver.statuses = [500]
    before = now()
    assert [send_due(sender) for _ in range(2)] == [1, 0]
    row = rows(database)[0]
    assert (row.status, row.attempts, row.delivered_at) == ("pending", 1, None)
    assert row.failure == "the receiver answered 500 instead of 2xx"
    assert timedelta(seconds=500) <= row.not_before - before <= timedelta(seconds=1010)
    make_due(database)
    assert [send_due(sender) for _ in range(3)] == [1, 1, 0]
    assert [body["status"] for body in bodies(receiver)] == ["running", "running", "completed"]
    assert receiver.received[0].body == receiver.received[1].body
    assert [(row.status, row.failure) for row in rows(database)] == [("delivered", None)] * 2


def test_a_callback_is_dead_after_the_last_attempt_and_can_be_resent(
    settings: Settings, database: Database, sender: Sender, receiver: Receiver
) -> None:
    samples.request_deletion(settings, database, NOBODY, callback_urls=[receiver.url("/hook?key=secret")])
    receiver.statuses = [500, 503]
    for _ in range(3):
        send_due(sender)
        make_due(database)
    (row,) = rows(database)
    assert (row.status, row.attempts, len(receiver.received)) == ("dead", 2, 2)
    with database.reading() as session:
        entry = session.scalars(select(AuditEntry).where(AuditEntry.action == "callback.dead")).one()
    assert (entry.details["host"], entry.details["attempts"]) == ("127.0.0.1", 2)
    assert "503" in entry.details["reason"]
    assert "secret" not in json.dumps(entry.details)
    with database.writing() as session:
        outbox.resend(session, row.id, "operator")
    send_due(sender)
    assert rows(database)[0].status == "delivered"
    assert {body["id"] for body in bodies(receiver)} == {str(row.id)}


def test_a_forbidden_target_is_not_retried(
    settings: Settings, database: Database, sender: Sender, receiver: Receiver
) -> None:
    strict = replace(sender, client=replace(sender.client, targets=Settings(_env_file=None).callback_targets))  # type: ignore[call-arg]
    samples.request_deletion(settings, database, NOBODY, callback_urls=[receiver.url(scheme="https")])
    assert send_due(strict) == 1
    (row,) = rows(database)
    assert (row.status, row.attempts, row.failure) == ("dead", 1, NOT_PUBLIC)
    assert receiver.received == []


def test_a_crash_after_sending_repeats_the_same_event(
    settings: Settings, database: Database, sender: Sender, receiver: Receiver
) -> None:
    samples.request_deletion(settings, database, NOBODY, callback_urls=[receiver.url()])
    with database.writing() as session:
        (claimed,) = claim_callbacks(session, Slots(), 60)
    asyncio.run(sender.client.deliver(sender.writer.write(claimed)))  # the outcome is not recorded
    assert send_due(sender) == 0  # its lease has not expired
    with database.writing() as session:
        session.execute(update(Callback).values(lease_expires_at=now() - timedelta(seconds=1)))
    assert send_due(sender) == 1
    first, again = receiver.received
    assert first.body == again.body
    assert (rows(database)[0].status, rows(database)[0].attempts) == ("delivered", 2)


def test_two_senders_send_nothing_twice(
    settings: Settings, database: Database, sender: Sender, receiver: Receiver
) -> None:
    """The receiver answers only when all have arrived, so both senders are still in their first round."""
    deletions = [
        samples.request_deletion(settings, database, NOBODY, callback_urls=[receiver.url()]).deletion for _ in range(25)
    ]
    sender, other = (replace(opened, slots=Slots(per_caller=15)) for opened in (sender, Sender.open(settings)))
    receiver.while_answering = lambda: wait_until(lambda: len(receiver.received) >= len(deletions), "all have arrived")
    threads = [threading.Thread(target=send_due, args=(each,)) for each in (sender, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close()
    ids = [body["deletion_id"] for body in bodies(receiver)]
    assert sorted(ids) == sorted(str(deletion.id) for deletion in deletions)
    assert {row.status for row in rows(database)} == {"delivered"}


def test_an_unexpected_error_is_a_failed_attempt(
    settings: Settings, database: Database, sender: Sender, receiver: Receiver
) -> None:
    async def broken(host: str, port: int) -> Sequence[str]:
        raise RuntimeError("unexpected")

    samples.request_deletion(settings, database, NOBODY, callback_urls=[receiver.url()])
    with structlog.testing.capture_logs() as logs:
        send_due(replace(sender, client=replace(sender.client, resolve=broken)))
    (row,) = rows(database)
    assert (row.status, row.failure) == (
        "pending",
        f"unexpected RuntimeError; see callback {row.id} in the sender's log",
    )
    assert "callback.crashed" in [line["event"] for line in logs]


@pytest.fixture
def opendsr_callback(
    settings: Settings, database: Database, sender: Sender, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> Received:
    """The callback of an OpenDSR request whose batch has started."""
    monkeypatch.setattr(processor_identity, "KEY_BITS", 2048)  # faster to generate
    model_id = samples.register_sample(settings, database)
    urls = [receiver.url("/opendsr")]
    lookups, reference = [samples.lookup(settings, 1)], OpenDsrReference("acme", SUBJECT_REQUEST, bytes)
    request = DeletionRequest("acme", "gdpr", lookups, None, "request-1", 0.0, callback_urls=urls, opendsr=reference)
    context = WorkerContext.open(settings)
    with context.database.writing() as session:
        store_deletions(session, [request], sender.writer.signer)
        claim_batch(session, model_id, "worker", context.terms)
    context.database.close()
    assert send_due(sender) == 1
    (received,) = receiver.received
    return received


def _due(database: Database) -> str:
    with database.reading() as session:
        return session.scalars(select(Deletion.due_at)).one().isoformat().replace("+00:00", "Z")


OPENDSR: dict[str, Callable[[Receiver, Database], str]] = {
    "controller_id": lambda *_: "acme",
    "status_callback_url": lambda receiver, _: receiver.url("/opendsr"),
    "subject_request_id": lambda *_: str(SUBJECT_REQUEST),
    "request_status": lambda *_: "in_progress",
    "expected_completion_time": lambda _, database: _due(database),
}


@pytest.mark.parametrize("field", OPENDSR)
def test_an_opendsr_callback_has_the_field(
    opendsr_callback: Received, receiver: Receiver, database: Database, field: str
) -> None:
    body = json.loads(opendsr_callback.body)
    assert body[field] == OPENDSR[field](receiver, database)
    assert set(body) == set(OPENDSR)


@pytest.mark.parametrize("name", ["OpenDSR", "OpenGDPR"])
def test_an_opendsr_callback_is_signed(opendsr_callback: Received, settings: Settings, name: str) -> None:
    certificate = x509.load_pem_x509_certificate(ProcessorIdentity.load(settings).certificate_pem.encode())
    key = certificate.public_key()
    assert isinstance(key, rsa.RSAPublicKey)
    assert opendsr_callback.headers[f"X-{name}-Processor-Domain"] == "localhost"
    signature = base64.b64decode(opendsr_callback.headers[f"X-{name}-Signature"])
    key.verify(signature, opendsr_callback.body, padding.PKCS1v15(), hashes.SHA256())


def test_slow_receivers_of_one_caller_do_not_delay_another(
    settings: Settings, database: Database, receiver: Receiver
) -> None:
    """The callback of the second caller waits for no attempt of the first, all of which last until the end."""
    with run_receiver() as slow, running_sender(settings):
        release = threading.Event()
        slow.while_answering = release.wait
        for number in range(30):
            urls = [slow.url(f"/{number}/{index}") for index in range(5)]
            samples.request_deletion(settings, database, NOBODY, callback_urls=urls, caller="first")
        wait_until(lambda: len(slow.received) >= Slots().per_host, "the first caller's attempts are in flight")
        started = time.monotonic()
        samples.request_deletion(settings, database, NOBODY, callback_urls=[receiver.url()], caller="second")
        wait_until(lambda: receiver.received, "the second caller's callback arrives")
        delay = time.monotonic() - started
        in_flight = len(slow.received)
        release.set()
    assert in_flight == Slots().per_host, "none of the first caller's attempts had ended"
    assert delay < settings.callback_timeout_seconds / 3


@contextmanager
def running_sender(settings: Settings) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=run_callbacks, args=(settings, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_a_sender_whose_key_was_retired_sends_nothing(
    settings: Settings, database: Database, receiver: Receiver, sender: Sender
) -> None:
    samples.request_deletion(settings, database, NOBODY, callback_urls=[receiver.url()])
    with database.writing() as session:
        retire(session, sender.writer.signer.key_id, "ops")
    with pytest.raises(KeyInactive, match="was retired"):
        sender.claim()
    assert [(row.status, row.attempts) for row in rows(database)] == [("pending", 0)] * len(rows(database))
    assert rows(database)
    assert receiver.received == []


def test_the_sweep_sends_callbacks(settings: Settings, database: Database, receiver: Receiver) -> None:
    stop = threading.Event()
    sweep = threading.Thread(target=run_sweep, args=(settings, stop))
    sweep.start()
    try:
        samples.request_deletion(settings, database, NOBODY, callback_urls=[receiver.url()])
        wait_until(lambda: receiver.received, "the callback arrives")
        wait_until(lambda: rows(database)[0].status == "delivered", "its delivery is recorded")
    finally:
        stop.set()
        sweep.join(timeout=20)
    assert not sweep.is_alive()


def test_delays_double_up_to_an_hour_with_jitter() -> None:
    def seconds(attempts: int) -> float:
        return retry_delay(attempts, 10.0).total_seconds()

    for attempts, maximum in ((1, 10), (2, 20), (5, 160), (30, 3600), (10_000, LONGEST_DELAY.total_seconds())):
        assert maximum / 2 <= seconds(attempts) <= maximum
    assert len({round(seconds(5), 3) for _ in range(20)}) > 1


def test_a_database_unavailable_at_the_start_is_waited_for(settings: Settings, database: Database) -> None:
    def rename(table: str, name: str) -> None:
        with database.writing() as session:
            session.execute(text(f"ALTER TABLE {table} RENAME TO {name}"))

    def has_key() -> bool:
        with database.reading() as session:
            return session.scalar(select(SigningKey.key_id)) is not None

    stop = threading.Event()
    thread = threading.Thread(target=run_callbacks, args=(settings, stop))
    rename("signing_keys", "hidden")
    with structlog.testing.capture_logs() as logs:
        try:
            thread.start()
            wait_until(lambda: len(logs) > 1, "it has tried twice")
        finally:
            rename("hidden", "signing_keys")
        wait_until(has_key, "the sender has opened")
        stop.set()
        thread.join()
    assert {line["event"] for line in logs} == {"callbacks.failed"}
