"""Subjects, records and models that requests name, as far as the database holds them. A few queries for any number."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from service.store.deletions.views import NamedRecord
from service.store.dialect import chunks
from service.store.tables import Record, Subject, Version


@dataclass(frozen=True)
class HeldSubject:
    """A subject with records in some model, now or earlier."""

    id: uuid.UUID
    key: bytes
    model_ids: Sequence[uuid.UUID]
    """The models with a record of this subject."""


@dataclass(frozen=True)
class Holdings:
    record_counts: Mapping[uuid.UUID, int]
    """Records at registration, by model."""
    subjects: Mapping[bytes, HeldSubject]
    """By lookup."""
    records: frozenset[NamedRecord]
    """The named records that still exist."""


def find_holdings(
    session: Session, lookups: Iterable[bytes], records: Iterable[NamedRecord], model_ids: Iterable[uuid.UUID]
) -> Holdings:
    named_records = set(records)
    return Holdings(
        record_counts=_count_records(session, {record.model_id for record in named_records}.union(model_ids)),
        subjects=_find_subjects(session, set(lookups)),
        records=_find_records(session, named_records),
    )


def _find_subjects(session: Session, lookups: Iterable[bytes]) -> Mapping[bytes, HeldSubject]:
    query = (
        select(Subject.lookup, Subject.id, Subject.key, Record.model_id)
        .distinct()
        .outerjoin(Record, Record.subject_id == Subject.id)
    )
    subjects: dict[bytes, HeldSubject] = {}
    for chunk in chunks(lookups):
        for lookup, subject_id, key, model_id in session.execute(query.where(Subject.lookup.in_(chunk))):
            model_ids = [] if model_id is None else [model_id]
            earlier_ids = subjects[lookup].model_ids if lookup in subjects else []
            subjects[lookup] = HeldSubject(subject_id, key, [*earlier_ids, *model_ids])
    return subjects


def _count_records(session: Session, model_ids: Iterable[uuid.UUID]) -> Mapping[uuid.UUID, int]:
    query = select(Version.model_id, Version.record_count).where(Version.number == 1)
    return {
        model_id: record_count
        for chunk in chunks(model_ids)
        for model_id, record_count in session.execute(query.where(Version.model_id.in_(chunk)))
    }


def _find_records(session: Session, records: Iterable[NamedRecord]) -> frozenset[NamedRecord]:
    query, key = select(Record.model_id, Record.record), tuple_(Record.model_id, Record.record)
    return frozenset(
        NamedRecord(model_id, number)
        for chunk in chunks(records)
        for model_id, number in session.execute(
            query.where(key.in_([(record.model_id, record.record) for record in chunk]))
        )
    )
