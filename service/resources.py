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
from service.http.errors import RoleForbidden, TokenLimited, TokenMissing
from service.http.metrics import Metrics
from service.http.rate_limits import RateLimits
from service.http.timed_checks import TimedChecks
from service.intake.background import Background
from service.intake.parsing import RequestParser
from service.intake.ringing import Ringer
from service.intake.submission import Intake
from service.readiness import open_readiness
from service.schemas.fields import IS_UUID
from service.settings import Settings
from service.store.access.identities import IdentityHasher
from service.store.access.identity_keys import open_hasher
from service.store.access.tokens import Caller
from service.store.artifacts.location import open_artifacts
from service.store.artifacts.store import ArtifactStore
from service.store.batches.doorbell import Doorbell
from service.store.database import Database
from service.store.errors import NotFound
from service.store.signing.keys import open_signer
from service.store.signing.processor_identity import ProcessorIdentity, open_processor
from service.store.signing.statements import StatementSigner
from service.store.states import Role

ELSEWHERE = "this token is limited to other networks; use it from there, or issue one for this network"
CANNOT_REGISTER = "this token is limited to certain models; register with one that is not"
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
    background: Background
    intake: Intake

    @functools.cached_property
    def processor(self) -> ProcessorIdentity:
        """Loaded on first use: if `lethe up` has not created the RSA key, creating it takes a while."""
        return open_processor(self.settings, self.database)

    @functools.cached_property
    def readiness(self) -> TimedChecks:
        ping, check = self.ringer.ping, self.hasher.check
        return open_readiness(self.settings, self.database, self.artifacts, check, self.signer, ping)

    @classmethod
    def open(cls, settings: Settings) -> Resources:
        database = Database(settings.database)
        ringer = Ringer(Doorbell(settings.broker, database))
        hasher, signer = open_hasher(settings, database), open_signer(settings, database)
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
            background=Background(),
            intake=Intake(database, hasher.check, signer, ringer, settings.idempotency_wait_seconds),
        )

    def parser(self, caller: Caller, request_id: str, key: str | None = None) -> RequestParser:
        return RequestParser(caller, self.hasher, self.settings.batch_window_seconds, request_id, key)

    def close(self) -> None:
        self.background.close()
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
        # Set by Admission. The header is declared here for the OpenAPI document.
        caller: Caller | None = request.state.caller
        if caller is None:
            raise TokenMissing(MISSING if credentials is None else UNKNOWN)
        if not caller.limits.allows_address(request.client.host if request.client else None):
            raise TokenLimited(ELSEWHERE)
        if caller.role not in roles:
            raise RoleForbidden(f"role {caller.role} is not allowed; use a token of role {' or '.join(roles)}")
        _check_model(caller, request.path_params.get("model_id"))
        return caller

    return check


def _check_model(caller: Caller, name: str | None) -> None:
    """Refuse a path to a model outside the token's limits, as if it did not exist."""
    if name is None or caller.limits.models is None or name in map(str, caller.limits.models):
        return
    raise NotFound(f"model {name} not found" if IS_UUID.fullmatch(name) else "model not found")


def visible_owner(caller: Caller) -> str | None:
    """Return the caller whose deletions are visible: compliance sees its own only, other roles see all (None)."""
    return caller.name if caller.role == Role.COMPLIANCE else None


async def _require_registrar(caller: Annotated[Caller, Depends(require_role(Role.ENGINEER))]) -> Caller:
    if caller.limits.models is not None:
        raise TokenLimited(CANNOT_REGISTER)
    return caller


async def _provide(request: Request) -> Resources:
    # Async, so that FastAPI does not start a thread for it.
    return resources_of(request)


ResourcesDep = Annotated[Resources, Depends(_provide)]
Compliance = Annotated[Caller, Depends(require_role(Role.COMPLIANCE))]
Operator = Annotated[Caller, Depends(require_role(Role.OPERATOR))]
Engineer = Annotated[Caller, Depends(require_role(Role.ENGINEER))]
Registrar = Annotated[Caller, Depends(_require_registrar)]
DeletionReader = Annotated[Caller, Depends(require_role(Role.COMPLIANCE, Role.OPERATOR, Role.AUDITOR))]
ModelReader = Annotated[Caller, Depends(require_role(Role.ENGINEER, Role.OPERATOR, Role.AUDITOR))]
