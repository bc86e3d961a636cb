"""How deletions come in: requests of one moment share a transaction, and whoever repeats a key shares its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.intake.doorbell import Bells
from service.intake.group_commit import GroupCommit
from service.intake.in_flight import InFlight
from service.schemas.deletions import receipt_out
from service.store.certificates.statements import sign_receipt
from service.store.database import Database
from service.store.deletions.creation import NewDeletion, create_many
from service.store.deletions.idempotency import KeyedAnswer, KeyUse, find_answers, remember_answers
from service.store.deletions.lifecycle import DeletionView
from service.store.errors import NotFound
from service.store.signing.statements import StatementSigner

T = TypeVar("T")
MOST_TRIES = 3
Outcome = DeletionView | NotFound
Answerer = Callable[[Sequence[Outcome]], str]


@dataclass(frozen=True)
class Asked:
    """One request for one deletion."""

    new: NewDeletion
    use: KeyUse | None


class Intake:
    """One for each process."""

    def __init__(self, database: Database, signer: StatementSigner, bells: Bells, wait_seconds: float) -> None:
        self._database = database
        self._signer = signer
        self._bells = bells
        self._group: GroupCommit[Asked, str] = GroupCommit(self._commit_group)
        self._in_flight = InFlight(wait_seconds)

    async def submit(self, asked: Asked) -> str:
        """The receipt as JSON, when the deletion is committed; the first one, if the key was used before."""
        if asked.use is None:
            return await self._group.submit(asked)
        return await self._in_flight.answer(asked.use, lambda: self._group.submit(asked))

    async def submit_bulk(self, news: Sequence[NewDeletion], use: KeyUse | None, answer: Answerer) -> str:
        """What `answer` makes of all outcomes, when they are committed: all at once, so that a crash leaves none."""
        if use is None:
            return await run_in_threadpool(self._commit_bulk, news, use, answer)
        return await self._in_flight.answer(use, lambda: run_in_threadpool(self._commit_bulk, news, use, answer))

    def close(self) -> None:
        self._group.close()
        self._bells.close()

    def _commit_group(self, group: Sequence[Asked]) -> Sequence[str | Exception]:
        answers, stored = self._transact(lambda session: _store_group(session, group, self._signer))
        self._ring(stored)
        return answers

    def _commit_bulk(self, news: Sequence[NewDeletion], use: KeyUse | None, answer: Answerer) -> str:
        text, stored = self._transact(lambda session: _store_bulk(session, news, use, answer, self._signer))
        self._ring(stored)
        return text

    def _ring(self, outcomes: Iterable[Outcome]) -> None:
        views = [outcome for outcome in outcomes if isinstance(outcome, DeletionView)]
        self._bells.ring({target.model_id for view in views for target in view.targets})

    def _transact(self, work: Callable[[Session], T]) -> T:
        tries = 0
        while True:
            tries += 1
            try:
                with self._database.writing() as session:
                    return work(session)
            except IntegrityError:
                # Between our look and our insert somebody was forgotten, or another process stored the same key.
                if tries == MOST_TRIES:
                    raise


def _store_group(
    session: Session, group: Sequence[Asked], signer: StatementSigner
) -> tuple[Sequence[str | Exception], Sequence[Outcome]]:
    """For each request its answer or what to raise for it; and what was stored."""
    known = find_answers(session, [asked.use for asked in group if asked.use])
    fresh = [asked for asked in group if asked.use is None or asked.use not in known]
    outcomes = create_many(session, [asked.new for asked in fresh], signer)
    told = [_told(outcome, signer) for outcome in outcomes]
    remember_answers(
        session,
        [
            KeyedAnswer(asked.use, answer, outcome.deletion.id)
            for asked, outcome, answer in zip(fresh, outcomes, told, strict=True)
            if asked.use and isinstance(outcome, DeletionView) and isinstance(answer, str)
        ],
    )
    fresh_answers = iter(told)
    answers = [known[asked.use] if asked.use and asked.use in known else next(fresh_answers) for asked in group]
    return answers, outcomes


def _store_bulk(
    session: Session, news: Sequence[NewDeletion], use: KeyUse | None, answer: Answerer, signer: StatementSigner
) -> tuple[str, Sequence[Outcome]]:
    known = find_answers(session, [use]).get(use) if use else None
    if isinstance(known, Exception):
        raise known
    if known is not None:
        return known, []
    outcomes = create_many(session, news, signer)
    text = answer(outcomes)
    if use:
        remember_answers(session, [KeyedAnswer(use, text)])
    return text, outcomes


def _told(outcome: Outcome, signer: StatementSigner) -> str | NotFound:
    if isinstance(outcome, NotFound):
        return outcome
    return receipt_out(outcome, sign_receipt(signer, outcome)).model_dump_json()
