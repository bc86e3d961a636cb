"""Resources of one worker process. Opened after the fork: database connections do not survive one."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from service.settings import Settings
from service.store.artifacts.location import open_artifacts
from service.store.artifacts.store import ArtifactStore
from service.store.batches.doorbell import Doorbell
from service.store.batches.lifecycle import ClaimTerms
from service.store.batches.selection import Limits
from service.store.database import Database
from service.store.refreshes.lifecycle import RefreshTerms
from service.store.signing.keys import open_signer
from service.store.signing.statements import StatementSigner


def process_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(frozen=True)
class WorkerContext:
    settings: Settings
    database: Database
    artifacts: ArtifactStore
    signer: StatementSigner
    doorbell: Doorbell
    name: str

    @classmethod
    def open(cls, settings: Settings, name: str | None = None) -> WorkerContext:
        database = Database(settings.database)
        return cls(
            settings=settings,
            database=database,
            artifacts=open_artifacts(settings),
            signer=open_signer(settings, database),
            doorbell=Doorbell(settings.broker, database),
            name=name or process_name(),
        )

    @property
    def refresh_terms(self) -> RefreshTerms:
        return RefreshTerms(
            below=self.settings.refresh_below,
            lease_seconds=self.settings.lease_seconds,
            max_crashes=self.settings.max_attempts,
        )

    @property
    def terms(self) -> ClaimTerms:
        return ClaimTerms(
            lease_seconds=self.settings.lease_seconds,
            max_attempts=self.settings.max_attempts,
            limits=Limits(self.settings.batch_most_deletions, self.settings.batch_largest_fraction),
        )
