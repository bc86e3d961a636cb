"""Which deletion an OpenDSR request became. The body is kept as a keyed hash only: it holds identities."""

from __future__ import annotations

import hmac
import uuid
from dataclasses import dataclass

from sqlalchemy.orm import Session

from service.store.deletions import lifecycle as deletions
from service.store.deletions.creation import NewDeletion, create
from service.store.deletions.lifecycle import DeletionView
from service.store.errors import IdempotencyMismatch, NotFound
from service.store.signing.statements import StatementSigner
from service.store.tables import OpenDsrRequest


@dataclass(frozen=True)
class Submission:
    subject_request_id: uuid.UUID
    body_mac: bytes
    deletion: NewDeletion


def submit(session: Session, submission: Submission, signer: StatementSigner) -> tuple[DeletionView, bool]:
    """The deletion, and whether it is new. The same request again is the same deletion; another body is refused."""
    caller = submission.deletion.caller
    known = session.get(OpenDsrRequest, (caller, submission.subject_request_id))
    if known is not None:
        if not hmac.compare_digest(known.body_mac, submission.body_mac):
            raise IdempotencyMismatch("this subject_request_id was used before with another body")
        return deletions.find(session, known.deletion_id, caller), False
    view = create(session, submission.deletion, signer)
    session.add(
        OpenDsrRequest(
            caller=caller,
            subject_request_id=submission.subject_request_id,
            deletion_id=view.deletion.id,
            body_mac=submission.body_mac,
        )
    )
    session.flush()
    return view, True


def find_deletion(session: Session, subject_request_id: uuid.UUID, caller: str) -> DeletionView:
    known = session.get(OpenDsrRequest, (caller, subject_request_id))
    if known is None:
        raise NotFound(f"there is no request {subject_request_id}")
    return deletions.find(session, known.deletion_id, caller)
