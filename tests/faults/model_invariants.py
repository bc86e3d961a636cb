"""Invariants of one model after any fault: its versions, certificates and files."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from safetensors.numpy import load
from sqlalchemy import select
from sqlalchemy.orm import Session

from lethe.verify import Rejected, verify
from service.settings import Settings
from service.store.certificates.bundles import find_certificate
from service.store.certificates.verification import write_key_list
from service.store.datasets.dataset import load_dataset
from service.store.datasets.tree import DatasetTree
from service.store.errors import ArtifactDamaged, Gone
from service.store.signing.keys import all_keys
from service.store.tables import AuditEntry, Batch, Certificate, Record, Version
from tests.faults.artifact_stores import artifact_store
from tests.faults.population import Population
from vocabulary.levels import DESTROYED

MAX_IN_CLAUSE = 500
"""Values in one IN clause; SQLite limits them to some thousands."""


@dataclass(frozen=True)
class Step:
    """What a batch did: it replaced a version, or destroyed the model if there is none after."""

    before: Version
    after: Version | None

    @property
    def forgotten(self) -> int:
        return self.before.record_count - (self.after.record_count if self.after else 0)

    def is_certified_by(self, certificate: Certificate) -> bool:
        version, is_destroyed = self.after or self.before, self.after is None
        return certificate.version_id == version.id and (certificate.level == DESTROYED) == is_destroyed

    def facts(self) -> dict[str, Any]:
        """Return what each of its certificates must say."""
        sides = {"before": self.before, **({"after": self.after} if self.after else {})}
        counts = {"before": self.before.record_count, "after": self.after.record_count if self.after else 0}
        datasets = {
            side: {"digest": version.dataset_digest, "root": version.dataset_root, "records": version.record_count}
            for side, version in sides.items()
        }
        return {"records": {**counts, "forgotten_in_batch": self.forgotten}, "dataset": datasets}


@dataclass(frozen=True)
class ModelState:
    """A model in the database, with the rows that it had and those that were to be forgotten."""

    session: Session
    settings: Settings
    model_id: uuid.UUID
    population: Population
    forgotten: set[int]

    @cached_property
    def versions(self) -> Sequence[Version]:
        query = select(Version).where(Version.model_id == self.model_id).order_by(Version.number)
        return self.session.scalars(query).all()

    @cached_property
    def certificates(self) -> Sequence[Certificate]:
        return self.session.scalars(select(Certificate).where(Certificate.model_id == self.model_id)).all()

    @property
    def retained(self) -> list[int]:
        return [row for row in range(len(self.population.points)) if row not in self.forgotten]

    @cached_property
    def steps(self) -> list[Step]:
        replacements = [Step(before, after) for before, after in pairwise(self.versions)]
        return replacements if self.retained else [*replacements, Step(self.versions[-1], None)]

    def violations(self) -> Iterator[str]:
        yield from self._broken_chain()
        yield from self._wrong_steps()
        yield from self._bad_certificates()
        yield from self._wrong_records()
        yield from self._wrong_files()

    def _broken_chain(self) -> Iterator[str]:
        numbers = [version.number for version in self.versions]
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"its versions are {numbers}, not consecutive"
        current = [version.number for version in self.versions if version.superseded_at is None]
        if current != (numbers[-1:] if self.retained else []):
            yield f"versions {current} are current, not only the last, or none of a destroyed model"
        if self.versions[0].record_count != len(self.population.points):
            yield f"its first version has {self.versions[0].record_count} records, not {len(self.population.points)}"

    def _wrong_steps(self) -> Iterator[str]:
        """Each version comes from one published batch, and lacks the records that the batch erased."""
        decreases = [step.forgotten for step in self.steps]
        entries = self.session.scalars(
            select(AuditEntry)
            .where(AuditEntry.concerns == str(self.model_id), AuditEntry.action == "records.erased")
            .order_by(AuditEntry.id)
        )
        erased = [entry.details["records"] for entry in entries]
        if erased != decreases:
            yield f"batches erased {erased} records, but its versions lost {decreases}"
        certified = [
            {certificate.batch_id for certificate in self.certificates if step.is_certified_by(certificate)}
            for step in self.steps
        ]
        batches = [batch_id for batch_ids in certified for batch_id in batch_ids]
        published = select(Batch.id).where(Batch.model_id == self.model_id, Batch.status == "published")
        if len(batches) != len(decreases) or set(batches) != set(self.session.scalars(published)):
            count = f"{len(decreases)} steps are certified by {len(batches)} batches"
            yield f"its {count}, or by some that were not published"

    def _bad_certificates(self) -> Iterator[str]:
        keys = write_key_list(self.settings.origin, all_keys(self.session))
        logged = self._count_entries()
        for certificate in self.certificates:
            if logged[str(certificate.id)] != 1:
                yield f"certificate {certificate.id} was logged {logged[str(certificate.id)]} times"
            try:
                bundle = find_certificate(self.session, certificate.id, caller=None)
                predicate = verify(bundle.encode(), keys).predicate
            except Rejected as reason:
                yield f"certificate {certificate.id} is rejected: {reason}"
                continue
            (step,) = (step for step in self.steps if step.is_certified_by(certificate))
            expected = {"deletion": str(certificate.deletion_id), **step.facts()}
            if {name: predicate[name] for name in expected} != expected:
                yield f"certificate {certificate.id} does not describe the step after {step.before.number}"

    def _count_entries(self) -> Counter[str]:
        """Return how often each certificate was logged as issued."""
        entries = select(AuditEntry.concerns).where(AuditEntry.action == "certificate.issued")
        ids = [str(certificate.id) for certificate in self.certificates]
        logged: Counter[str] = Counter()
        for start in range(0, len(ids), MAX_IN_CLAUSE):
            chunk = ids[start : start + MAX_IN_CLAUSE]
            logged.update(self.session.scalars(entries.where(AuditEntry.concerns.in_(chunk))))
        return logged

    def _wrong_records(self) -> Iterator[str]:
        query = select(Record.record).where(Record.model_id == self.model_id).order_by(Record.record)
        rows = self.session.scalars(query).all()
        if list(rows) != self.retained:
            yield f"{len(rows)} records have an owner, expected {len(self.retained)}"

    def _wrong_files(self) -> Iterator[str]:
        """The current files match their digests, hold exactly the retained rows, and are the only files."""
        current, store = self.versions[-1], artifact_store(self.settings)
        expected = {current.posterior_digest, current.dataset_digest} if self.retained else set()
        for name in sorted({file.name for file in store.files(self.model_id)} - expected):
            yield f"the file {name} should have been destroyed"
        if not self.retained:
            return
        try:
            content = store.get(self.model_id, current.dataset_digest)
            posterior = store.get(self.model_id, current.posterior_digest)
        except (ArtifactDamaged, Gone) as error:
            yield f"a current file cannot be read: {error}"
            return
        yield from self._wrong_dataset(current, content)
        yield from self._wrong_posterior(posterior)

    def _wrong_dataset(self, current: Version, content: bytes) -> Iterator[str]:
        dataset = load_dataset(content)
        if dataset.records.tolist() != self.retained or current.record_count != len(self.retained):
            counts = f"{len(dataset.records)} rows ({current.record_count} by its version)"
            yield f"its data set has {counts}, not {len(self.retained)}"
        elif current.dataset_root != DatasetTree.from_dataset(dataset).root:
            yield "its data set has another root than its version states"
        elif not np.array_equal(dataset.arrays["x"], self.population.points[self.retained]):
            yield "its data set has other values than were registered"

    def _wrong_posterior(self, content: bytes) -> Iterator[str]:
        posterior, exact = load(content), self.population.posterior_without(self.forgotten)
        if not all(np.allclose(posterior[name], exact[name], atol=1e-9) for name in exact):
            yield "its posterior is not that of the retained rows"
