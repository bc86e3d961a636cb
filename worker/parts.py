"""Members of an ensemble trained side by side: the worker that holds a batch offers parts of it to all workers.

Lost messages, dead helpers and slow ones cost time only: the holder trains every part itself that nobody else works on.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

import structlog
import torch
from safetensors.torch import load, save
from sqlalchemy.exc import SQLAlchemyError
from torch import Tensor

import ml
from ml.ladder.ensemble import OnFraction, retrain_member
from service.store.artifacts.store import write_ahead
from service.store.batches.doorbell import PART_TASK
from service.store.batches.lifecycle import Claim, find_running
from service.store.batches.parts import (
    KIND,
    add_parts,
    finish_part,
    finished_parts,
    release_part,
    renew_part,
    take_part,
)
from service.store.errors import LeaseLost
from worker.context import WorkerContext
from worker.loading import LoadedModel, load_claimed

POLL_SECONDS = 0.2
HEARTBEATS = 3
"""Renewals of a part within the length of its lease."""

log = structlog.get_logger("worker")


@dataclass(frozen=True, eq=False)
class SharedTraining:
    """Training of members by the holder of a batch and whoever helps: a `TrainMembers` of the ensemble's ladder."""

    context: WorkerContext
    claim: Claim
    loaded: LoadedModel
    forgotten: Tensor
    trained: dict[int, Tensor | None] = field(default_factory=dict)

    def __call__(self, members: Sequence[int], report: OnFraction) -> Mapping[int, Tensor | None]:
        if len(members) == 1:
            self._train(members[0], report)
            return self.trained
        with self.context.database.writing() as session:
            add_parts(session, self.claim.batch_id, members)
        for _ in members[1:]:
            self.context.doorbell.ring(self.claim.model_id, task=PART_TASK)
        while len(self.trained) < len(members):
            self._advance(len(members), report)
        return self.trained

    def _advance(self, total: int, report: OnFraction) -> None:
        """Collect what others have trained, then train a free part, or wait if there is none."""
        self._collect()
        done = len(self.trained)
        report(done / total)
        member = self._take()
        if member is not None:
            self._train(member, lambda fraction: report((done + fraction) / total))
        elif done < total:
            time.sleep(POLL_SECONDS)

    def _take(self) -> int | None:
        with self.context.database.writing() as session:
            # For as long as the batch may take: if its holder dies, the batch ends, and its parts with it.
            seconds = self.context.settings.task_seconds
            return take_part(session, self.claim.batch_id, self.context.name, seconds)

    def _train(self, member: int, report: OnFraction) -> None:
        model, posterior = _ensemble(self.loaded)
        self.trained[member] = retrain_member(model, posterior, self.loaded.rows, self.forgotten, member, report)

    def _collect(self) -> None:
        """Read new files at once: they are destroyed when nobody adopts them within an hour."""
        with self.context.database.reading() as session:
            finished = finished_parts(session, self.claim.batch_id)
        for member, digest in finished.items():
            if member not in self.trained:
                self.trained[member] = _read(self.context.artifacts.get(self.claim.model_id, digest))


def help_training(context: WorkerContext, model_id: uuid.UUID) -> int:
    """Train parts of the model's running batch until none is free; return how many."""
    with context.database.reading() as session:
        claim = find_running(session, model_id)
    count = 0
    try:
        while claim is not None and (member := _take(context, claim)) is not None:
            _help(context, claim, member)
            count += 1
    except LeaseLost:
        log.info("part.lost", model_id=str(model_id))
    return count


def _take(context: WorkerContext, claim: Claim) -> int | None:
    with context.database.writing() as session:
        return take_part(session, claim.batch_id, context.name, context.settings.lease_seconds)


def _help(context: WorkerContext, claim: Claim, member: int) -> None:
    """Train a member and store it. On failure, leave it to the holder, whose own attempt decides what it means."""
    try:
        with _PartLease(context, claim.batch_id, member):
            loaded = load_claimed(context.artifacts, claim)
            model, posterior = _ensemble(loaded)
            forgotten = torch.from_numpy(loaded.dataset.positions(claim.forgotten))
            content = _write(retrain_member(model, posterior, loaded.rows, forgotten, member))
            digest = write_ahead(
                context.database, context.artifacts, claim.model_id, KIND, content, batch_id=claim.batch_id
            )
        with context.database.writing() as session:
            finish_part(session, claim.batch_id, member, digest)
        log.info("part.trained", batch_id=str(claim.batch_id), member=member)
    except LeaseLost:
        raise
    except Exception:
        with context.database.writing() as session:
            release_part(session, claim.batch_id, member)
        raise


def _ensemble(loaded: LoadedModel) -> tuple[ml.Network, ml.Ensemble]:
    if not isinstance(loaded.model, ml.Network) or not isinstance(loaded.posterior, ml.Ensemble):
        raise TypeError("only ensembles of networks have parts")
    return loaded.model, loaded.posterior


def _write(theta: Tensor | None) -> bytes:
    """Return the file of a member; one without rows has no tensor."""
    return save({} if theta is None else {"member": theta.cpu()})


def _read(content: bytes) -> Tensor | None:
    return load(content).get("member")


class _PartLease:
    """Heartbeat of a part: a helper that dies stops renewing, and the part becomes free."""

    def __init__(self, context: WorkerContext, batch_id: uuid.UUID, member: int) -> None:
        self._renew: Callable[[], None] = lambda: self._write(context, batch_id, member)
        self._seconds = context.settings.lease_seconds / HEARTBEATS
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"part-{batch_id}-{member}", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(self._seconds):
            try:
                self._renew()
            except LeaseLost:
                return
            except SQLAlchemyError as error:
                log.warning("part.heartbeat_missed", reason=type(error).__name__)

    @staticmethod
    def _write(context: WorkerContext, batch_id: uuid.UUID, member: int) -> None:
        with context.database.writing() as session:
            renew_part(session, batch_id, member, context.settings.lease_seconds)
