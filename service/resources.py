"""What a running API holds, and the dependency aliases through which routes ask for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from service.http.caller_cache import CallerCache
from service.http.errors import RoleForbidden, TokenMissing
from service.http.metrics import Metrics
from service.intake.doorbell import Bells
from service.intake.submission import Intake
from service.settings import Settings
from service.store.access.identities import IdentityHasher
from service.store.access.tokens import Caller
from service.store.artifacts.location import open_artifacts
from service.store.artifacts.store import ArtifactStore
from service.store.batches.doorbell import Doorbell
from service.store.database import Database
from service.store.signing.keys import open_signer
from service.store.signing.processor_identity import ProcessorIdentity
from service.store.signing.statements import StatementSigner
from service.store.states import Role

bearer = HTTPBearer(auto_error=False, description="A token from `lethe token issue`.")


@dataclass(frozen=True)
class Resources:
    settings: Settings
    database: Database
    artifacts: ArtifactStore
    hasher: IdentityHasher
    signer: StatementSigner
    doorbell: Doorbell
    metrics: Metrics
    callers: CallerCache
    intake: Intake

    @functools.cached_property
    def processor(self) -> ProcessorIdentity:
        """Read when it is first needed: where `lethe up` has not made it, making an RSA key takes its time."""
        return ProcessorIdentity.load(self.settings)

    @classmethod
    def open(cls, settings: Settings) -> Resources:
        database = Database(settings.database)
        doorbell = Doorbell(settings.broker, database)
        signer = open_signer(settings, database)
        bells = Bells(doorbell, settings.batch_window_seconds)
        return cls(
            settings=settings,
            database=database,
            artifacts=open_artifacts(settings),
            hasher=IdentityHasher(settings.identity_key_bytes()),
            signer=signer,
            doorbell=doorbell,
            metrics=Metrics(),
            callers=CallerCache(database, settings.token_cache_seconds),
            intake=Intake(database, signer, bells, settings.idempotency_wait_seconds),
        )

    def close(self) -> None:
        self.intake.close()
        self.doorbell.close()
        self.database.close()


def resources_of(request: Request) -> Resources:
    resources: Resources = request.app.state.resources
    return resources


def allowed(
    *roles: Role,
) -> Callable[[Request, HTTPAuthorizationCredentials | None], Coroutine[Any, Any, Caller]]:
    """A dependency that lets only these roles in and tells who is calling."""

    async def check(
        request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
    ) -> Caller:
        if credentials is None:
            raise TokenMissing("send `Authorization: Bearer <token>`; `lethe token issue` makes one")
        caller = await resources_of(request).callers.find(credentials.credentials)
        if caller is None:
            raise TokenMissing("the token is unknown or revoked; `lethe token issue` makes a new one")
        if caller.role not in roles:
            raise RoleForbidden(f"role {caller.role} may not do this; it takes {' or '.join(roles)}")
        return caller

    return check


def own_only(caller: Caller) -> str | None:
    """Whose deletions this caller may see: compliance its own, everybody else's role all of them (None)."""
    return caller.name if caller.role == Role.COMPLIANCE else None


async def _provided(request: Request) -> Resources:
    # Async only so that FastAPI does not hand so little work to a thread.
    return resources_of(request)


ResourcesDep = Annotated[Resources, Depends(_provided)]
Compliance = Annotated[Caller, Depends(allowed(Role.COMPLIANCE))]
Engineer = Annotated[Caller, Depends(allowed(Role.ENGINEER))]
DeletionReader = Annotated[Caller, Depends(allowed(Role.COMPLIANCE, Role.OPERATOR, Role.AUDITOR))]
ModelReader = Annotated[Caller, Depends(allowed(Role.ENGINEER, Role.OPERATOR, Role.AUDITOR))]
