"""The callback sender: claim due callbacks -> sign -> post -> record the outcome. Several may run at once."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import httpx
import structlog

from service.settings import Settings
from service.store.callbacks import outbox
from service.store.callbacks.outbox import ClaimedCallback
from service.store.database import Database
from service.store.signing.keys import open_signer
from service.store.tables import now
from worker.callbacks.delivery import CallbackClient, NotDelivered, TargetForbidden
from worker.callbacks.message import MessageWriter

log = structlog.get_logger("callbacks")

BATCH_SIZE = 20
LONGEST_DELAY = timedelta(hours=1)
LEASE_SLACK_SECONDS = 60.0
"""Added to the attempt's timeout, for a database that keeps a writer waiting."""


@dataclass(frozen=True)
class Sender:
    settings: Settings
    database: Database
    writer: MessageWriter
    client: CallbackClient

    @classmethod
    def open(cls, settings: Settings) -> Sender:
        client = CallbackClient(
            settings.callback_targets, settings.callback_timeout_seconds, httpx.create_ssl_context()
        )
        database = Database(settings.database)
        return cls(settings, database, MessageWriter(settings, open_signer(settings, database)), client)

    def send_due(self) -> int:
        """Send up to BATCH_SIZE due callbacks concurrently and return their number; takes as long as one attempt."""
        lease_seconds = self.settings.callback_timeout_seconds + LEASE_SLACK_SECONDS
        with self.database.writing() as session:
            claims = outbox.claim_callbacks(session, BATCH_SIZE, lease_seconds)
        if claims:
            asyncio.run(self._send_all(claims))
        return len(claims)

    async def _send_all(self, claims: Sequence[ClaimedCallback]) -> None:
        # Wait for all: a failure to record one outcome must not cancel the others.
        for outcome in await asyncio.gather(*map(self._send, claims), return_exceptions=True):
            if outcome is not None:
                raise outcome

    async def _send(self, callback: ClaimedCallback) -> None:
        try:
            await self.client.deliver(self.writer.write(callback))
        except NotDelivered as error:
            await asyncio.to_thread(self._record_failure, callback, str(error), isinstance(error, TargetForbidden))
        except Exception as error:
            log.exception("callback.crashed", callback_id=str(callback.id))
            reason = f"unexpected {type(error).__name__}; see callback {callback.id} in the sender's log"
            await asyncio.to_thread(self._record_failure, callback, reason, False)
        else:
            await asyncio.to_thread(self._record_delivery, callback)

    def _record_delivery(self, callback: ClaimedCallback) -> None:
        with self.database.writing() as session:
            is_recorded = outbox.mark_delivered(session, callback)
        self._log("callback.delivered" if is_recorded else "callback.lost", callback)

    def _record_failure(self, callback: ClaimedCallback, reason: str, permanent: bool) -> None:
        is_dead = permanent or callback.attempts >= self.settings.callback_attempts
        retry_at = None if is_dead else retry_time(callback.attempts, self.settings.callback_base_seconds)
        with self.database.writing() as session:
            is_recorded = outbox.mark_failed(session, callback, reason, retry_at)
        self._log("callback.dead" if is_dead and is_recorded else "callback.failed", callback, reason=reason)

    def _log(self, event: str, callback: ClaimedCallback, **fields: str) -> None:
        log.info(
            event, callback_id=str(callback.id), deletion_id=str(callback.deletion_id), host=callback.host, **fields
        )


def retry_time(attempts: int, base_seconds: float) -> datetime:
    """Return the time of the next attempt: exponential backoff, with jitter that spreads simultaneous failures."""
    delay = min(base_seconds * 2.0 ** min(attempts - 1, 30), LONGEST_DELAY.total_seconds())
    return now() + timedelta(seconds=delay * secrets.SystemRandom().uniform(0.5, 1.0))


def run_callbacks(settings: Settings, stop: threading.Event) -> None:
    """Send callbacks until `stop` is set. An unavailable database is waited for."""
    sender: Sender | None = None
    while not stop.is_set():
        try:
            sender = sender or Sender.open(settings)
            if sender.send_due():
                continue
        except Exception:
            log.exception("callbacks.failed")  # go on: nothing would restart this thread
        stop.wait(settings.sweep_seconds)
    if sender is not None:
        sender.database.close()
