"""Background threads of the log: one sequences new entries, the other publishes the newest checkpoint.

Checkpoints are published to a file, a URL and witnesses, from where they cannot be taken back. Sequencing waits for
none of them. Several processes may run both: publishing the same checkpoint twice is harmless.
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
from service.store.clock import current_time
from service.store.database import Database
from service.store.log import sequencing
from service.store.log.checkpoints import parse_signatures
from service.store.signing.keys import open_signer
from service.store.signing.statements import StatementSigner
from service.store.tables import Checkpoint
from worker.key_problems import KEY_PROBLEMS, KeyReport
from worker.witness_client import NotWitnessed, request_cosignature

log = structlog.get_logger("log")

MAX_INTERVAL_SECONDS = 1.0
"""Upper limit of the sweep's interval here, so that an entry is in a signed checkpoint within two seconds."""
MAX_BATCH = 50_000
"""Entries sequenced in one transaction; matters when a long audit trail is sequenced for the first time."""
TIMEOUT_SECONDS = 5.0
NOTE_TYPE = {"Content-Type": "text/plain; charset=utf-8"}


def sequence_all(database: Database, signer: StatementSigner) -> None:
    """Sequence all pending entries. Checks in a read transaction first: a write would block other writers."""
    while _is_behind(database):
        with database.writing() as session:
            sequencing.sequence_entries(session, signer, MAX_BATCH)


def _is_behind(database: Database) -> bool:
    with database.reading() as session:
        return sequencing.has_unsequenced_entries(session)


def run_sequencer(settings: Settings, stop: threading.Event) -> None:
    """Sequence entries until `stop` is set. An unavailable database is waited for, and so is a key that may sign.

    A key that was retired or revoked is read again: a key file holds the successor after `lethe key rotate`.
    """
    database = Database(settings.database)
    signer: StatementSigner | None = None
    report = KeyReport("sequencer")
    while not stop.wait(min(settings.sweep_seconds, MAX_INTERVAL_SECONDS)):
        try:
            signer = signer or open_signer(settings, database)
            sequence_all(database, signer)
            report.clear()
        except KEY_PROBLEMS as error:
            report.wait(error)
            signer = None
        except Exception:
            log.exception("sequencer.failed")  # go on: nothing would restart this thread
    database.close()


def run_publisher(settings: Settings, stop: threading.Event) -> None:
    """Publish checkpoints until `stop` is set. Return at once if no destination is configured."""
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
    """Publishes the newest checkpoint to every configured destination and remembers what each has received."""

    settings: Settings
    database: Database
    client: httpx.Client
    published_sizes: dict[str, int] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)

    @classmethod
    def open(cls, settings: Settings) -> Publisher:
        return cls(settings, Database(settings.database), httpx.Client(timeout=TIMEOUT_SECONDS))

    def close(self) -> None:
        self.client.close()
        self.database.close()

    def publish_newest(self) -> None:
        """Publish to witnesses first, so that the others get the cosignatures. Failures are retried later."""
        newest = self._newest()
        if newest is None or newest.published_at is not None:
            return
        published = [
            self._publish_to(witness.id, newest, partial(self._cosign, witness))
            for witness in self.settings.log_witnesses
        ]
        with self.database.reading() as session:
            cosigned = session.get_one(Checkpoint, newest.size)
        if self.settings.checkpoint_file:
            published.append(self._publish_to("file", cosigned, partial(append_note, self.settings.checkpoint_file)))
        if self.settings.checkpoint_url:
            put = partial(self._put, self.settings.checkpoint_url.get_secret_value())
            published.append(self._publish_to("url", cosigned, put))
        if all(published):
            with self.database.writing() as session:
                session.get_one(Checkpoint, newest.size).published_at = current_time(session)

    def _newest(self) -> Checkpoint | None:
        with self.database.reading() as session:
            return sequencing.latest_checkpoint(session)

    def _publish_to(self, destination: str, checkpoint: Checkpoint, send: Callable[[Checkpoint], None]) -> bool:
        """Return whether the destination has the checkpoint now. Only the first failure in a row is logged."""
        if self.published_sizes.get(destination) == checkpoint.size:
            return True
        try:
            send(checkpoint)
        except (NotWitnessed, httpx.HTTPError, OSError) as error:
            reason = str(error) if isinstance(error, NotWitnessed) else type(error).__name__
            if destination not in self.failing:
                log.warning("checkpoint.unpublished", to=destination, size=checkpoint.size, reason=reason)
            self.failing.add(destination)
            return False
        if destination in self.failing:
            log.info("checkpoint.published_again", to=destination, size=checkpoint.size)
        self.failing.discard(destination)
        self.published_sizes[destination] = checkpoint.size
        return True

    def _cosign(self, witness: Witness, checkpoint: Checkpoint) -> None:
        def prove(old_size: int) -> Sequence[bytes]:
            with self.database.reading() as session:
                return sequencing.prove_consistency(session, old_size, checkpoint.size)

        last_size = self.published_sizes.get(witness.id, 0)
        lines = request_cosignature(self.client, witness, checkpoint.note, prove, last_size)
        with self.database.writing() as session:
            row = session.get_one(Checkpoint, checkpoint.size, with_for_update=True)
            if witness.id not in {signature.id for signature in parse_signatures(row.cosignatures)}:
                row.cosignatures += lines

    def _put(self, url: str, checkpoint: Checkpoint) -> None:
        content = sequencing.full_note(checkpoint).encode()
        self.client.put(url, content=content, headers=NOTE_TYPE).raise_for_status()


def append_note(path: Path, checkpoint: Checkpoint) -> None:
    """Append a checkpoint and an empty line to the file, unless the file already ends with it."""
    content = f"{sequencing.full_note(checkpoint)}\n".encode()
    with path.open("ab+") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - len(content)))
        if file.read() != content:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
