"""What the database knows about the people, records and models that requests name: a few queries however many ask."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from service.store.deletions.lifecycle import NamedRecord
from service.store.tables import Record, Subject, Version

T = TypeVar("T")
LOOKUP_CHUNK = 5_000
"""SQLite allows 32,766 bound values in one statement."""


@dataclass(frozen=True)
class Known:
    """A subject whom some model holds, or held."""

    id: uuid.UUID
    key: bytes
    model_ids: Sequence[uuid.UUID]
    """The models with a record of theirs."""


@dataclass(frozen=True)
class Holdings:
    rows: Mapping[uuid.UUID, int]
    """Of each named model, with how many records it was registered."""
    subjects: Mapping[bytes, Known]
    """By lookup."""
    records: frozenset[NamedRecord]
    """Of the named records, those that are still there."""


def find_holdings(
    session: Session, lookups: Iterable[bytes], records: Iterable[NamedRecord], model_ids: Iterable[uuid.UUID]
) -> Holdings:
    named = set(records)
    return Holdings(
        rows=_find_models(session, {one.model_id for one in named}.union(model_ids)),
        subjects=_find_subjects(session, set(lookups)),
        records=_find_records(session, named),
    )


def _find_subjects(session: Session, lookups: Iterable[bytes]) -> Mapping[bytes, Known]:
    query = (
        select(Subject.lookup, Subject.id, Subject.key, Record.model_id)
        .distinct()
        .outerjoin(Record, Record.subject_id == Subject.id)
    )
    found: dict[bytes, Known] = {}
    for some in _chunks(lookups):
        for lookup, subject_id, key, model_id in session.execute(query.where(Subject.lookup.in_(some))):
            held = [] if model_id is None else [model_id]
            before = found[lookup].model_ids if lookup in found else []
            found[lookup] = Known(subject_id, key, [*before, *held])
    return found


def _find_models(session: Session, model_ids: Iterable[uuid.UUID]) -> Mapping[uuid.UUID, int]:
    query = select(Version.model_id, Version.record_count).where(Version.number == 1)
    return {
        model_id: record_count
        for some in _chunks(model_ids)
        for model_id, record_count in session.execute(query.where(Version.model_id.in_(some)))
    }


def _find_records(session: Session, named: Iterable[NamedRecord]) -> frozenset[NamedRecord]:
    query, key = select(Record.model_id, Record.record), tuple_(Record.model_id, Record.record)
    return frozenset(
        NamedRecord(model_id, record)
        for some in _chunks(named)
        for model_id, record in session.execute(query.where(key.in_([(one.model_id, one.record) for one in some])))
    )


def _chunks(values: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(values)
    while chunk := list(islice(rest, LOOKUP_CHUNK)):
        yield chunk
