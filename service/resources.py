"""Resources of a running API, and the dependencies through which routes get them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from service.http.admission import MISSING, UNKNOWN
from service.http.caller_cache import CallerCache
from service.http.errors import RoleForbidden, TokenMissing
from service.http.metrics import Metrics
from service.http.rate_limits import RateLimits
from service.http.timed_checks import TimedChecks
from service.intake.parsing import RequestParser
from service.intake.ringing import Ringer
from service.intake.submission import Intake
from service.readiness import open_readiness
from service.settings import Settings
from service.store.access.identities import IdentityHasher
from service.store.access.identity_keys import open_hasher
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
    ringer: Ringer
    metrics: Metrics
    callers: CallerCache
    limits: RateLimits
    intake: Intake

    @functools.cached_property
    def processor(self) -> ProcessorIdentity:
        """Loaded on first use: if `lethe up` has not created the RSA key, creating it takes a while."""
        return ProcessorIdentity.load(self.settings)

    @functools.cached_property
    def readiness(self) -> TimedChecks:
        return open_readiness(self.settings, self.database, self.artifacts, self.signer, self.ringer.ping)

    @classmethod
    def open(cls, settings: Settings) -> Resources:
        database = Database(settings.database)
        ringer = Ringer(Doorbell(settings.broker, database))
        hasher, signer = open_hasher(settings, database), open_signer(settings, database)
        times = settings.batch_window_seconds, settings.idempotency_wait_seconds
        return cls(
            settings=settings,
            database=database,
            artifacts=open_artifacts(settings),
            hasher=hasher,
            signer=signer,
            ringer=ringer,
            metrics=Metrics(),
            callers=CallerCache(database, settings.token_cache_seconds),
            limits=RateLimits(settings.broker, settings.rate_per_second, settings.rate_burst),
            intake=Intake(database, hasher.check, signer, ringer, *times),
        )

    def parser(self, caller: Caller, request_id: str) -> RequestParser:
        return RequestParser(caller, self.hasher, self.settings.batch_window_seconds, request_id)

    def close(self) -> None:
        self.intake.close()
        self.ringer.close()
        self.database.close()


def resources_of(request: Request) -> Resources:
    resources: Resources = request.app.state.resources
    return resources


def require_role(
    *roles: Role,
) -> Callable[[Request, HTTPAuthorizationCredentials | None], Coroutine[Any, Any, Caller]]:
    """Return a dependency that admits only these roles and yields the caller."""

    async def check(
        request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
    ) -> Caller:
        caller: Caller | None = (
            request.state.caller
        )  # set by Admission; the header is declared for the OpenAPI document
        if caller is None:
            raise TokenMissing(MISSING if credentials is None else UNKNOWN)
        if caller.role not in roles:
            raise RoleForbidden(f"role {caller.role} is not allowed; use a token of role {' or '.join(roles)}")
        return caller

    return check


def visible_owner(caller: Caller) -> str | None:
    """Return the caller whose deletions are visible: compliance sees its own only, other roles see all (None)."""
    return caller.name if caller.role == Role.COMPLIANCE else None


async def _provide(request: Request) -> Resources:
    # Async, so that FastAPI does not start a thread for it.
    return resources_of(request)


ResourcesDep = Annotated[Resources, Depends(_provide)]
Compliance = Annotated[Caller, Depends(require_role(Role.COMPLIANCE))]
Engineer = Annotated[Caller, Depends(require_role(Role.ENGINEER))]
DeletionReader = Annotated[Caller, Depends(require_role(Role.COMPLIANCE, Role.OPERATOR, Role.AUDITOR))]
ModelReader = Annotated[Caller, Depends(require_role(Role.ENGINEER, Role.OPERATOR, Role.AUDITOR))]
