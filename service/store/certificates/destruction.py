"""Certificates of destruction: a model ended because a deletion left it no records, or too few."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from service.store.canonical_json import canonical_json
from service.store.certificates.software import software
from service.store.certificates.statements import ERASURE_NOT_PROVED, dataset_facts, model_facts, version_subject
from service.store.datasets.tree import DatasetTree
from service.store.tables import Model, Version
from vocabulary.certificate import (
    DESTRUCTION_TYPE,
    DestroyedDataset,
    DestroyedProof,
    DestructionFacts,
    ErasureFacts,
    RecordCounts,
)
from vocabulary.levels import DESTROYED

EMPTIED = (
    "The request, with others of its batch, named all records that the model still had. So the model was destroyed "
    "with all of its files, and no version came after."
)
TOO_FEW = (
    "The batch of this request left the model {remaining} of {before} records, and a model of its family and "
    "configuration needs at least {needed}. So it was destroyed with all of its records and files, and no version "
    "came after."
)
COPIES_NOT_PROVED = (
    "Copies of the model, its data set or its predictions that were made outside of Lethe are not covered: engineers "
    "may have downloaded any version while it was current."
)
ROOT_NOT_PROVED = (
    "That the data-set root was computed from the rows on which the model stood, with commitments in order, rests on "
    "the software that signed this."
)


@dataclass(frozen=True)
class Destruction:
    """A model was destroyed. `statement` says why."""

    predicate_type: ClassVar[str] = DESTRUCTION_TYPE
    level: ClassVar[str] = DESTROYED
    epsilon: ClassVar[None] = None
    model: Model
    version: Version
    tree: DatasetTree
    erasure: ErasureFacts
    statement: str

    @functools.cached_property
    def subjects(self) -> bytes:
        """Canonical JSON of the statement's subject: the last version."""
        return canonical_json([version_subject(self.model, self.version).to_dict()])

    @functools.cached_property
    def members(self) -> Mapping[str, bytes]:
        records = self.version.record_count
        facts = DestructionFacts(
            model=model_facts(self.model),
            records=RecordCounts(before=records, after=0, forgotten_in_batch=records),
            dataset=DestroyedDataset(before=dataset_facts(self.version, self.tree)),
            erasure=self.erasure,
            statement=self.statement,
            not_proved=[ROOT_NOT_PROVED, ERASURE_NOT_PROVED, COPIES_NOT_PROVED],
            software=software(),
        )
        return {name: canonical_json(value) for name, value in facts.to_dict().items()}

    def members_for(self, deletion_id: uuid.UUID, records: Collection[int]) -> Mapping[str, bytes]:
        return self.members

    def prove(self, records: Collection[int]) -> DestroyedProof:
        commitments, present = self.tree.prove_present(records)
        return DestroyedProof(before=present, commitments=[commitment.hex() for commitment in commitments])


def state_reason(before: int, forgotten: int, needed: int) -> str:
    """Return why a model with `before` records is destroyed when `forgotten` of them are deleted."""
    remaining = before - forgotten
    return TOO_FEW.format(remaining=remaining, before=before, needed=needed) if remaining else EMPTIED
