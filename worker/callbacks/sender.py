"""The sender of callbacks: claim what is due -> sign -> post -> say how it went. Any number may run at once."""

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
from service.store.callbacks.outbox import Claimed
from service.store.database import Database
from service.store.signing.keys import open_signer
from service.store.tables import now
from worker.callbacks.delivery import Courier, Forbidden, NotDelivered
from worker.callbacks.message import Writer

log = structlog.get_logger("callbacks")

AT_ONCE = 20
LONGEST_DELAY = timedelta(hours=1)
LEASE_SLACK_SECONDS = 60.0
"""Beside the attempt itself a lease has room for a database that lets a writer wait."""


@dataclass(frozen=True)
class Sender:
    settings: Settings
    database: Database
    writer: Writer
    courier: Courier

    @classmethod
    def open(cls, settings: Settings) -> Sender:
        courier = Courier(settings.callback_targets, settings.callback_timeout_seconds, httpx.create_ssl_context())
        database = Database(settings.database)
        return cls(settings, database, Writer(settings, open_signer(settings, database)), courier)

    def send_due(self) -> int:
        """One round: at most AT_ONCE callbacks, side by side, so that it lasts no longer than one attempt may."""
        lease_seconds = self.settings.callback_timeout_seconds + LEASE_SLACK_SECONDS
        with self.database.writing() as session:
            claims = outbox.claim(session, AT_ONCE, lease_seconds)
        if claims:
            asyncio.run(self._send_all(claims))
        return len(claims)

    async def _send_all(self, claims: Sequence[Claimed]) -> None:
        # Each to its end: one that could not be noted down must not cut the others off.
        for outcome in await asyncio.gather(*map(self._send, claims), return_exceptions=True):
            if outcome is not None:
                raise outcome

    async def _send(self, claimed: Claimed) -> None:
        try:
            await self.courier.deliver(self.writer.write(claimed))
        except NotDelivered as error:
            await asyncio.to_thread(self._note_failure, claimed, str(error), isinstance(error, Forbidden))
        except Exception as error:
            log.exception("callback.crashed", callback_id=str(claimed.id))
            reason = f"unexpected {type(error).__name__}; the sender's log has it under callback {claimed.id}"
            await asyncio.to_thread(self._note_failure, claimed, reason, False)
        else:
            await asyncio.to_thread(self._note_delivery, claimed)

    def _note_delivery(self, claimed: Claimed) -> None:
        with self.database.writing() as session:
            held = outbox.delivered(session, claimed)
        self._log("callback.delivered" if held else "callback.lost", claimed)

    def _note_failure(self, claimed: Claimed, reason: str, permanent: bool) -> None:
        given_up = permanent or claimed.attempts >= self.settings.callback_attempts
        retry_at = None if given_up else retry_time(claimed.attempts, self.settings.callback_base_seconds)
        with self.database.writing() as session:
            held = outbox.failed(session, claimed, reason, retry_at)
        self._log("callback.dead" if given_up and held else "callback.failed", claimed, reason=reason)

    def _log(self, event: str, claimed: Claimed, **fields: str) -> None:
        log.info(event, callback_id=str(claimed.id), deletion_id=str(claimed.deletion_id), host=claimed.host, **fields)


def retry_time(attempts: int, base_seconds: float) -> datetime:
    """Twice as long each time, and somewhere in the upper half of that: those that failed together part ways."""
    longest = min(base_seconds * 2.0 ** min(attempts - 1, 30), LONGEST_DELAY.total_seconds())
    return now() + timedelta(seconds=longest * secrets.SystemRandom().uniform(0.5, 1.0))


def run_callbacks(settings: Settings, stop: threading.Event) -> None:
    """Send until `stop` is set. A database that is away is waited for."""
    sender: Sender | None = None
    while not stop.is_set():
        try:
            sender = sender or Sender.open(settings)
            if sender.send_due():
                continue
        except Exception:
            log.exception("callbacks.failed")  # and go on: nobody else would start this thread again
        stop.wait(settings.sweep_seconds)
    if sender is not None:
        sender.database.close()
