"""Erasure of a batch's people from the database, inside the transaction that certifies it."""

from __future__ import annotations

import uuid
from collections.abc import Collection

from sqlalchemy import ColumnElement, delete, select
from sqlalchemy.orm import Session

from service.store import audit
from service.store.access.identities import destroy_keys, lock_forgotten
from service.store.deletions.bodies import find_bodies
from service.store.erasure_traces import add_trace
from service.store.tables import Batch, Record


def erase(session: Session, batch: Batch, where: ColumnElement[bool]) -> Collection[uuid.UUID]:
    """Delete links from records to subjects, and keys of subjects without records. Their rows are no longer in use.

    Return the bodies of requests that name such a subject. The caller deletes them once it has locked its deletions.
    """
    subject_ids = session.scalars(select(Record.subject_id).distinct().where(where)).all()
    deletion = delete(Record).where(where).returning(Record.record).execution_options(synchronize_session=False)
    records = len(session.execute(deletion).all())
    erased = lock_forgotten(session, subject_ids)
    body_ids = find_bodies(session, erased)
    destroy_keys(session, erased)
    add_trace(session)
    audit.record(session, batch.worker, "records.erased", batch.model_id, records=records, keys_destroyed=len(erased))
    return body_ids
