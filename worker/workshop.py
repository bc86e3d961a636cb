"""What one worker process holds. Opened after the fork: database connections do not survive one."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from service.settings import Settings
from service.store.artifacts import ArtifactStore
from service.store.batches import ClaimTerms
from service.store.database import Database
from service.store.signing import StatementSigner


@dataclass(frozen=True)
class Workshop:
    settings: Settings
    database: Database
    artifacts: ArtifactStore
    signer: StatementSigner
    name: str

    @classmethod
    def open(cls, settings: Settings) -> Workshop:
        return cls(
            settings=settings,
            database=Database(settings.database),
            artifacts=ArtifactStore(settings.artifact_dir),
            signer=StatementSigner(settings.signing_key_bytes()),
            name=f"{socket.gethostname()}:{os.getpid()}",
        )

    @property
    def terms(self) -> ClaimTerms:
        return ClaimTerms(
            lease_seconds=self.settings.lease_seconds,
            max_attempts=self.settings.max_attempts,
            window_seconds=self.settings.batch_window_seconds,
        )
