"""The callback sender: claim due callbacks -> sign -> post -> record the outcome. Several may run at once.

Attempts run side by side in slots (service/store/callbacks/slots.py). A free slot goes to the caller with the fewest
attempts in flight, so slow receivers of one caller do not delay the callbacks of another.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import httpx
import structlog

from service.settings import Settings
from service.store.callbacks import outbox
from service.store.callbacks.claiming import ClaimedCallback, claim_callbacks
from service.store.callbacks.slots import Slots
from service.store.database import Database
from service.store.signing.keys import open_signer, require_active
from worker.callbacks.delivery import CallbackClient, NotDelivered, TargetForbidden
from worker.callbacks.message import MessageWriter
from worker.key_problems import KEY_PROBLEMS, KeyReport

log = structlog.get_logger("callbacks")
T = TypeVar("T")

LONGEST_DELAY = timedelta(hours=1)
LEASE_SLACK_SECONDS = 60.0
"""Added to the attempt's timeout, for a database that keeps a writer waiting."""
PAUSE_SECONDS = 0.02
"""Between two claims, so that attempts that end at the same time are replaced by one claim."""
RECORDING_THREADS = 4
RESOLVING_THREADS = 256
"""A name server that does not answer holds a thread for longer than an attempt lasts. Threads start when needed."""


@dataclass(frozen=True)
class Sender:
    settings: Settings
    database: Database
    writer: MessageWriter
    client: CallbackClient
    slots: Slots = field(default_factory=Slots)
    records: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(RECORDING_THREADS, "callbacks"))
    """Threads for the database alone, which name servers cannot hold."""

    @classmethod
    def open(cls, settings: Settings) -> Sender:
        client = CallbackClient(
            settings.callback_targets, settings.callback_timeout_seconds, httpx.create_ssl_context()
        )
        database = Database(settings.database)
        return cls(settings, database, MessageWriter(settings, open_signer(settings, database)), client)

    def close(self) -> None:
        self.records.shutdown()
        self.database.close()

    async def run(self, stop: threading.Event) -> None:
        """Send due callbacks until `stop` is set, and wait for the attempts in flight. Raises if a claim fails."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(RESOLVING_THREADS, "resolver"))
        attempts: set[asyncio.Task[None]] = set()
        try:
            while not stop.is_set():
                claims = await self._in_records(self.claim)
                for callback in claims:
                    self.slots.take(callback.caller, callback.host)
                    attempts.add(asyncio.create_task(self._attempt(callback)))
                await self._pause(attempts, PAUSE_SECONDS if claims else self.settings.sweep_seconds)
                attempts = {attempt for attempt in attempts if not attempt.done()}
        finally:
            if attempts:
                await asyncio.wait(attempts)

    def claim(self) -> Sequence[ClaimedCallback]:
        lease_seconds = self.settings.callback_timeout_seconds + LEASE_SLACK_SECONDS
        with self.database.writing() as session:
            claims = claim_callbacks(session, self.slots, lease_seconds)
            if claims:
                require_active(session, self.writer.signer)
            return claims

    async def send(self, callback: ClaimedCallback) -> None:
        """Make one attempt and record its outcome."""
        try:
            await self.client.deliver(self.writer.write(callback))
        except NotDelivered as error:
            await self._in_records(self._record_failure, callback, str(error), isinstance(error, TargetForbidden))
        except Exception as error:
            log.exception("callback.crashed", callback_id=str(callback.id))
            reason = f"unexpected {type(error).__name__}; see callback {callback.id} in the sender's log"
            await self._in_records(self._record_failure, callback, reason, False)
        else:
            await self._in_records(self._record_delivery, callback)

    async def _attempt(self, callback: ClaimedCallback) -> None:
        try:
            await self.send(callback)
        except Exception:
            log.exception("callbacks.failed")  # the outcome is not recorded: it is sent again when its lease has ended
        finally:
            self.slots.release(callback.caller, callback.host)

    async def _pause(self, attempts: set[asyncio.Task[None]], seconds: float) -> None:
        """Wait until an attempt ends and leaves a slot, at most for `seconds`."""
        await asyncio.sleep(PAUSE_SECONDS)
        if attempts and seconds > PAUSE_SECONDS:
            await asyncio.wait(attempts, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        elif not attempts:
            await asyncio.sleep(seconds)

    async def _in_records(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.records, function, *arguments)

    def _record_delivery(self, callback: ClaimedCallback) -> None:
        with self.database.writing() as session:
            is_recorded = outbox.mark_delivered(session, callback)
        self._log("callback.delivered" if is_recorded else "callback.lost", callback)

    def _record_failure(self, callback: ClaimedCallback, reason: str, permanent: bool) -> None:
        is_dead = permanent or callback.attempts >= self.settings.callback_attempts
        delay = None if is_dead else retry_delay(callback.attempts, self.settings.callback_base_seconds)
        with self.database.writing() as session:
            is_recorded = outbox.mark_failed(session, callback, reason, delay)
        self._log("callback.dead" if is_dead and is_recorded else "callback.failed", callback, reason=reason)

    def _log(self, event: str, callback: ClaimedCallback, **fields: str) -> None:
        log.info(
            event, callback_id=str(callback.id), deletion_id=str(callback.deletion_id), host=callback.host, **fields
        )


def retry_delay(attempts: int, base_seconds: float) -> timedelta:
    """Return the time until the next attempt: exponential backoff, with jitter that spreads simultaneous failures."""
    delay = min(base_seconds * 2.0 ** min(attempts - 1, 30), LONGEST_DELAY.total_seconds())
    return timedelta(seconds=delay * secrets.SystemRandom().uniform(0.5, 1.0))


def run_callbacks(settings: Settings, stop: threading.Event) -> None:
    """Send callbacks until `stop` is set. An unavailable database is waited for, and so is a key that may sign."""
    sender: Sender | None = None
    report = KeyReport("callbacks")
    while not stop.is_set():
        try:
            sender = sender or Sender.open(settings)
            asyncio.run(sender.run(stop))
        except KEY_PROBLEMS as error:
            report.wait(error)
            if sender is not None:
                sender.close()
            sender = None
            stop.wait(settings.sweep_seconds)
        except Exception:
            log.exception("callbacks.failed")  # go on: nothing would restart this thread
            stop.wait(settings.sweep_seconds)
    if sender is not None:
        sender.close()
