"""Submission of deletion requests: store, sign, commit, answer, and ring the workers' doorbells.

Single requests share a transaction (group commit). A bulk is stored in slices, each with a transaction and an
idempotency key of its own: others take their turn between two slices, and a bulk that is repeated after a crash
continues where it stopped. Requests with the same idempotency key share their answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from service.intake.group_commit import GroupCommit
from service.intake.in_flight import InFlight
from service.intake.ringing import Ringer
from service.store.access.secret_checks import CheckValue, require_match
from service.store.database import Database
from service.store.database_errors import is_row_held
from service.store.deletions.creation import NewWork, Outcome, store_deletions
from service.store.deletions.idempotency import KeyedAnswer, KeyUse, find_answers, save_answers
from service.store.deletions.requests import DeletionRequest
from service.store.deletions.views import DeletionView
from service.store.dialect import wait_for_locks
from service.store.errors import IdempotencyMismatch, KeyInFlight, StoreError
from service.store.signing.statements import StatementSigner
from service.store.states import DeletionStatus

MAX_TRIES = 3
GROUP_LOCK_SECONDS, ALONE_LOCK_SECONDS = 1.0, 0.1
"""Time to wait for rows, such as those of a person whose erasure is being published.

If a group cannot have one in time, its requests are stored one by one: only those that need it are refused.
"""
PAUSE_SECONDS = 0.02
"""Between two slices of a bulk: other processes that wait for SQLite's lock ask for it again in intervals."""


def _raise(error: Exception) -> str:
    raise error


@dataclass(frozen=True)
class Submission:
    """Deletion requests of one HTTP request, or a slice of a bulk: stored together, answered by one text."""

    requests: Sequence[DeletionRequest]
    write_answer: Callable[[Sequence[Outcome]], str]
    """Called inside the transaction. May raise the StoreError of a single request."""
    key: KeyUse | None = None
    write_failure: Callable[[Exception], str] = _raise
    """Writes the answer of a slice that was not stored, although earlier ones were."""


def single_submission(
    request: DeletionRequest, write_answer: Callable[[DeletionView], str], key: KeyUse | None = None
) -> Submission:
    """Return the submission of one request, whose refusal is raised."""

    def write(outcomes: Sequence[Outcome]) -> str:
        (outcome,) = outcomes
        if isinstance(outcome, StoreError):
            raise outcome
        return write_answer(outcome)

    return Submission([request], write, key)


class Intake:
    """Entrance for all deletion requests of a process."""

    def __init__(
        self,
        database: Database,
        check: CheckValue,
        signer: StatementSigner,
        ringer: Ringer,
        wait_seconds: float,
    ) -> None:
        self._database = database
        self._check = check
        self._signer = signer
        self._ringer = ringer
        self._group: GroupCommit[Submission, str] = GroupCommit(self._commit)
        self._in_flight = InFlight(wait_seconds)

    async def submit(self, first: Submission, *slices: Submission) -> str:
        """Return the answer once the deletions are committed; the first answer if the key was used before."""
        if first.key is None:
            return await self._store_slices(first, *slices)
        return await self._in_flight.answer(first.key, lambda: self._store_slices(first, *slices))

    def close(self) -> None:
        self._group.close()

    async def _store_slices(self, first: Submission, *slices: Submission) -> str:
        """Store one slice after the other. If one fails after the first, the answer says so for it and all later."""
        answers = [await self._store(first)]
        for number, submission in enumerate(slices):
            await asyncio.sleep(PAUSE_SECONDS)
            try:
                answers.append(await self._store(submission))
            except (IdempotencyMismatch, KeyInFlight):
                raise
            except Exception as error:
                answers += [failed.write_failure(error) for failed in slices[number:]]
                break
        return "".join(answers)

    async def _store(self, submission: Submission) -> str:
        if not submission.requests:
            return await run_in_threadpool(submission.write_answer, [])
        weight = len(submission.requests)
        return await self._group.submit(submission, lane=submission.requests[0].caller, weight=weight)

    def _commit(self, submissions: Sequence[Submission]) -> Sequence[str | Exception]:
        try:
            return self._commit_together(submissions, GROUP_LOCK_SECONDS)
        except OperationalError as error:
            if len(submissions) == 1 or not is_row_held(error.orig):
                raise
        return [self._commit_alone(submission) for submission in submissions]

    def _commit_alone(self, submission: Submission) -> str | Exception:
        try:
            (answer,) = self._commit_together([submission], ALONE_LOCK_SECONDS)
        except Exception as error:
            return error
        return answer

    def _commit_together(self, submissions: Sequence[Submission], lock_seconds: float) -> Sequence[str | StoreError]:
        answers, work = self._transact(submissions, lock_seconds)
        self._ringer.ring_when_due(work)
        return answers

    def _transact(
        self, submissions: Sequence[Submission], lock_seconds: float
    ) -> tuple[Sequence[str | StoreError], NewWork]:
        tries = 0
        while True:
            tries += 1
            try:
                with self._database.writing() as session:
                    wait_for_locks(session, lock_seconds)
                    require_match(session, self._check)  # with another key, people who are held would seem absent
                    return _store_submissions(session, submissions, self._signer)
            except IntegrityError:
                # Between reading and inserting, a subject was forgotten or another process stored the same request.
                if tries == MAX_TRIES:
                    raise


def _store_submissions(
    session: Session, submissions: Sequence[Submission], signer: StatementSigner
) -> tuple[Sequence[str | StoreError], NewWork]:
    """Return the answer to each submission, or the error to raise for it; and the models with new work."""
    repeated = find_answers(session, [submission.key for submission in submissions if submission.key])
    requests = [
        request for submission in submissions if submission.key not in repeated for request in submission.requests
    ]
    stored = store_deletions(session, requests, signer)
    remaining = iter(stored.outcomes)
    answers: list[str | StoreError] = []
    keyed_answers: list[KeyedAnswer] = []
    for submission in submissions:
        if submission.key and submission.key in repeated:
            answers.append(repeated[submission.key])
            continue
        outcomes = list(islice(remaining, len(submission.requests)))
        answer = _write_answer(submission, outcomes)
        answers.append(answer)
        views = [outcome for outcome in outcomes if isinstance(outcome, DeletionView)]
        if submission.key and isinstance(answer, str) and views:  # if nothing was stored, a repetition tries again
            keyed_answers.append(KeyedAnswer(submission.key, answer, has_ended=any(map(_has_ended, views))))
    save_answers(session, keyed_answers)
    return answers, stored.work


def _write_answer(submission: Submission, outcomes: Sequence[Outcome]) -> str | StoreError:
    try:
        return submission.write_answer(outcomes)
    except StoreError as error:
        return error


def _has_ended(view: DeletionView) -> bool:
    return view.deletion.status == DeletionStatus.COMPLETED
