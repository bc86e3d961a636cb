"""The log's own threads beside the sweep: one places what was written, another shows the newest checkpoint outside.

What is outside cannot be taken back: a file elsewhere, a URL, witnesses who sign it. None of them is waited for when
entries are placed. Any number may run at once: the same checkpoint shown twice is the same.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import structlog

from service.settings import Settings
from service.settings.witnesses import Witness
from service.store.database import Database
from service.store.log import checkpoints as notes
from service.store.log import sequencing as store_log
from service.store.signing.keys import open_signer
from service.store.signing.statements import StatementSigner
from service.store.tables import Checkpoint, now
from worker.witnessing import NotWitnessed, ask

log = structlog.get_logger("log")

LONGEST_ROUND_SECONDS = 1.0
"""However seldom the sweep looks: an entry is in a signed checkpoint within two seconds."""
MOST_AT_ONCE = 50_000
"""Entries in one transaction, when a long trail gets its places for the first time."""
TIMEOUT_SECONDS = 5.0
NOTE_TYPE = {"Content-Type": "text/plain; charset=utf-8"}


def place_all(database: Database, signer: StatementSigner) -> None:
    """Give every entry that is there its place. Looks first, since to write would keep others waiting."""
    while _is_behind(database):
        with database.writing() as session:
            store_log.sequence(session, signer, MOST_AT_ONCE)


def _is_behind(database: Database) -> bool:
    with database.reading() as session:
        return store_log.is_behind(session)


def run_sequencer(settings: Settings, stop: threading.Event) -> None:
    """Place entries until `stop` is set. A database that is away is waited for."""
    database = Database(settings.database)
    signer: StatementSigner | None = None
    while not stop.wait(min(settings.sweep_seconds, LONGEST_ROUND_SECONDS)):
        try:
            signer = signer or open_signer(settings, database)
            place_all(database, signer)
        except Exception:
            log.exception("sequencer.failed")  # and go on: nobody else would start this thread again
    database.close()


def run_publisher(settings: Settings, stop: threading.Event) -> None:
    """Show checkpoints outside until `stop` is set; where nobody is to be shown any, do nothing."""
    if not (settings.checkpoint_file or settings.checkpoint_url or settings.log_witnesses):
        return
    publisher = Publisher.open(settings)
    while not stop.wait(settings.sweep_seconds):
        try:
            publisher.publish_newest()
        except Exception:
            log.exception("publisher.failed")
    publisher.close()


@dataclass
class Publisher:
    """Shows the newest checkpoint to all who are configured, and remembers what each has seen."""

    settings: Settings
    database: Database
    client: httpx.Client
    seen: dict[str, int] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)

    @classmethod
    def open(cls, settings: Settings) -> Publisher:
        return cls(settings, Database(settings.database), httpx.Client(timeout=TIMEOUT_SECONDS))

    def close(self) -> None:
        self.client.close()
        self.database.close()

    def publish_newest(self) -> None:
        """Witnesses come first, so that the others see their signatures. Who fails is tried again next time."""
        newest = self._newest()
        if newest is None or newest.published_at is not None:
            return
        done = [
            self._show(witness.id, newest, partial(self._have_signed, witness))
            for witness in self.settings.log_witnesses
        ]
        with self.database.reading() as session:
            signed = session.get_one(Checkpoint, newest.size)
        if self.settings.checkpoint_file:
            done.append(self._show("file", signed, partial(append_note, self.settings.checkpoint_file)))
        if self.settings.checkpoint_url:
            done.append(self._show("url", signed, partial(self._put, self.settings.checkpoint_url.get_secret_value())))
        if all(done):
            with self.database.writing() as session:
                session.get_one(Checkpoint, newest.size).published_at = now()

    def _newest(self) -> Checkpoint | None:
        with self.database.reading() as session:
            return store_log.latest(session)

    def _show(self, to: str, checkpoint: Checkpoint, show: Callable[[Checkpoint], None]) -> bool:
        """Whether it has been seen there by now. A failure is told once, until it goes well again."""
        if self.seen.get(to) == checkpoint.size:
            return True
        try:
            show(checkpoint)
        except (NotWitnessed, httpx.HTTPError, OSError) as error:
            reason = str(error) if isinstance(error, NotWitnessed) else type(error).__name__
            if to not in self.failing:
                log.warning("checkpoint.unpublished", to=to, size=checkpoint.size, reason=reason)
            self.failing.add(to)
            return False
        if to in self.failing:
            log.info("checkpoint.published_again", to=to, size=checkpoint.size)
        self.failing.discard(to)
        self.seen[to] = checkpoint.size
        return True

    def _have_signed(self, witness: Witness, checkpoint: Checkpoint) -> None:
        def prove(old: int) -> Sequence[bytes]:
            with self.database.reading() as session:
                return store_log.consistency(session, old, checkpoint.size)

        lines = ask(self.client, witness, checkpoint.note, prove, self.seen.get(witness.id, 0))
        with self.database.writing() as session:
            row = session.get_one(Checkpoint, checkpoint.size, with_for_update=True)
            if witness.id not in {one.id for one in notes.parse_signatures(row.cosignatures)}:
                row.cosignatures += lines

    def _put(self, url: str, checkpoint: Checkpoint) -> None:
        content = store_log.full_note(checkpoint).encode()
        self.client.put(url, content=content, headers=NOTE_TYPE).raise_for_status()


def append_note(path: Path, checkpoint: Checkpoint) -> None:
    """An empty line behind each note keeps them apart. The last one is not written twice."""
    piece = f"{store_log.full_note(checkpoint)}\n".encode()
    with path.open("ab+") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - len(piece)))
        if file.read() != piece:
            file.write(piece)
            file.flush()
            os.fsync(file.fileno())
