"""Routes of models: registration, versions, policies, and download of the current posterior."""

from __future__ import annotations

import re
import uuid
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Body, Depends, Header, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import TypeAdapter, ValidationError
from sqlalchemy.orm import Session
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from service.http.errors import ImportsDisabled, error_responses, field_path
from service.http.large_response import LargeResponse
from service.http.strict_json import StrictRoute, read_json
from service.intake.import_root import read_parts
from service.intake.subject_stream import count_rows, read_subjects
from service.resources import Engineer, ModelReader, Operator, Registrar, Resources, ResourcesDep, require_role
from service.schemas.models import (
    Manifest,
    ModelImport,
    ModelOut,
    ModelPage,
    Policy,
    model_out,
)
from service.schemas.paging import WindowQuery, next_cursor
from service.schemas.refreshes import RefreshOut, refresh_out
from service.schemas.versions import VersionPage, version_out
from service.store.access.identities import Identity
from service.store.access.tokens import Caller
from service.store.artifacts.folder import translate_disk_full
from service.store.batches.doorbell import CHECK_TASK, REFRESH_TASK
from service.store.datasets.tensor_files import Content, map_file
from service.store.errors import InvalidPolicy, InvalidRegistration
from service.store.models import registry
from service.store.models.registry import (
    Registration,
    change_policy,
    current_version,
    find_model,
    last_version,
    register,
    require_existing,
)
from service.store.refreshes import requests
from service.store.refreshes.listing import latest_refreshes
from service.store.states import Role
from service.store.tables import Model

router = APIRouter(prefix="/api/v1/models", tags=["models"], route_class=StrictRoute)

PolicySetter = Annotated[Caller, Depends(require_role(Role.OPERATOR, Role.ENGINEER))]
PolicyBody = Annotated[
    Policy, Body(examples=[{"epsilon": 1e-6, "level": "proved", "rungs": ["influence", "newton"], "seconds": 60}])
]
EXAMPLE = {
    "manifest": {
        "name": "churn",
        "family": "logistic-regression",
        "posterior": "samples",
        "config": {"dimensions": 12, "prior_std": 1.0},
        "policy": {"epsilon": 0.01, "level": "estimated"},
    },
    "location": {
        "posterior": "churn/samples.safetensors",
        "records": "churn/records.safetensors",
        "subjects": "churn/subjects.json",
    },
}
NETWORK_EXAMPLE: dict[str, dict[str, Any]] = {
    "manifest": {
        "name": "digits",
        "family": "mlp",
        "config": {"dimensions": 64, "hidden": 16, "classes": 10, "prior_std": 0.15},
        "policy": {"epsilon": 0.5, "level": "estimated", "rungs": ["influence", "warm", "retrain"]},
    },
    "location": {
        "posterior": "digits/posterior.safetensors",
        "records": "digits/records.safetensors",
        "subjects": "digits/subjects.json",
    },
}
NETWORK_SAMPLES_EXAMPLE = {
    "manifest": {
        **NETWORK_EXAMPLE["manifest"],
        "posterior": "samples",
        "policy": {"epsilon": 0.1, "level": "estimated", "rungs": ["reweight", "retrain"], "reference": "stored draws"},
    },
    "location": {**NETWORK_EXAMPLE["location"], "posterior": "digits/samples.safetensors"},
}
ImportBody = Annotated[ModelImport, Body(examples=[EXAMPLE, NETWORK_EXAMPLE, NETWORK_SAMPLES_EXAMPLE])]
T = TypeVar("T")
Manifests: TypeAdapter[Manifest] = TypeAdapter(Manifest)
PARTS = {
    "manifest": "JSON: name, family, posterior, config, policy; see `manifest` of `POST /api/v1/models/import`.",
    "posterior": "safetensors: `mean` and `std` of variational parameters, `samples` and `chain` of a sample "
    "set, or `members`, `seed`, `shard` and `recipe` of an ensemble.",
    "records": "safetensors: the training data `x`, one row per record (float64; float32 is allowed for networks). For "
    "regressions and networks the target is the last column.",
    "subjects": "JSON list: the subject of each row, in the order of the rows.",
}
OPTIONAL_PARTS = {
    "never_seen": "safetensors: rows `x` that the model was not trained on. Certificates compare the forgotten rows "
    "with them. They are kept as long as the model: send none that somebody could ask to erase.",
}
MULTIPART: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": list(PARTS),
                    "properties": {
                        name: {"type": "string", "format": "binary", "description": text}
                        for name, text in {**PARTS, **OPTIONAL_PARTS}.items()
                    },
                }
            }
        },
    }
}
BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
ARTIFACT_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The whole file.", "content": BYTES},
    206: {"description": "The requested range.", "content": BYTES},
    304: {"description": "`If-None-Match` names the current posterior: nothing changed."},
    **error_responses(416),
}
ARTIFACT_HEAD_RESPONSES: dict[int | str, dict[str, Any]] = {status: ARTIFACT_RESPONSES[status] for status in (200, 304)}
# 18 digits are more than the bytes of any file.
SINGLE_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII | re.IGNORECASE)


@router.get("", response_model=ModelPage, summary="List models, newest first")
def list_models(caller: ModelReader, resources: ResourcesDep, window: WindowQuery) -> ModelPage:
    """Return each model with its current version."""
    with resources.database.reading() as session:
        page = registry.find_model_page(session, window, caller.limits.models)
        refreshes = latest_refreshes(session, [model.id for model, _ in page.items])
    items = [model_out(model, version, refreshes.get(model.id)) for model, version in page.items]
    return ModelPage(items=items, next_cursor=next_cursor(page))


@router.post("", status_code=201, response_model=ModelOut, summary="Register a model", openapi_extra=MULTIPART)
async def register_model(request: Request, caller: Registrar, resources: ResourcesDep) -> ModelOut:
    """Check everything before anything is stored. The body is read only after the token has been checked."""
    limit = len(PARTS) + len(OPTIONAL_PARTS)
    with translate_disk_full():  # large parts are written to disk before they are checked
        async with request.form(max_files=limit, max_fields=limit) as form:
            names = [*PARTS, *(name for name in OPTIONAL_PARTS if name in form)]
            parts = {name: _content(form, name) for name in names}
            return await run_in_threadpool(_register_parts, resources, parts, caller.name)


@router.post("/import", status_code=201, response_model=ModelOut, summary="Register a model from files on the server")
def import_model(body: ImportBody, caller: Registrar, resources: ResourcesDep) -> ModelOut:
    """Register from files that are too large to send. They are read only below the folder `LETHE_IMPORT_ROOT`.

    The parts, checks and limits are those of an upload. Symbolic links are not followed. Without that setting: 403.
    """
    root = resources.settings.import_root
    if root is None:
        raise ImportsDisabled("send the files to POST /api/v1/models, or have the operator set LETHE_IMPORT_ROOT")
    location = body.location.model_dump(exclude_none=True)
    parts = read_parts(root, location, resources.settings.max_upload_bytes)
    return _register(resources, body.manifest, parts, caller.name)


@router.get("/{model_id}", response_model=ModelOut, summary="Read a model and its current version")
def read_model(model_id: uuid.UUID, caller: ModelReader, resources: ResourcesDep) -> ModelOut:
    """Return its policy, its number of records and its readiness; of a destroyed model, when that was."""
    return _model(resources, model_id)


@router.get("/{model_id}/versions", response_model=VersionPage, summary="List the versions of a model, newest first")
def list_versions(
    model_id: uuid.UUID, caller: ModelReader, resources: ResourcesDep, window: WindowQuery
) -> VersionPage:
    """Return the dataset and readiness of each version, and whether its posterior was destroyed."""
    with resources.database.reading() as session:
        page = registry.find_version_page(session, model_id, window)
    return VersionPage(items=[version_out(view) for view in page.items], next_cursor=next_cursor(page))


@router.put("/{model_id}/policy", response_model=ModelOut, summary="Set the policy of a model")
def set_policy(model_id: uuid.UUID, body: PolicyBody, caller: PolicySetter, resources: ResourcesDep) -> ModelOut:
    """Replace the whole policy. The audit log records the old and the new one.

    Deletions received earlier keep what they were promised: where `epsilon`, `level` and `reference` of the old policy
    are stricter, they still apply to them. `rungs` and `seconds` of the new policy apply at once.
    """
    with resources.database.writing() as session:
        model = find_model(session, model_id)
        require_existing(model)
        conflict = body.conflict_with(model.family, model.posterior_kind)
        if conflict is not None:
            raise InvalidPolicy(conflict)
        model = change_policy(session, model_id, body.model_dump(), caller.name)
        return _with_version(session, model)


@router.post("/{model_id}/refresh", status_code=202, response_model=RefreshOut, summary="Request a refresh")
def request_refresh(model_id: uuid.UUID, caller: Operator, resources: ResourcesDep) -> RefreshOut:
    """Have an idle worker continue the chains of a sample set, whatever LETHE_REFRESH_BELOW says.

    Deletions come first: one of this model ends the refresh. If one waits or runs already, that one is returned. A
    refreshed version has the same records and even weights; no certificate is issued, since nobody was deleted.
    """
    with resources.database.writing() as session:
        requested = refresh_out(requests.request_refresh(session, model_id, caller.name))
    resources.ringer.ring([model_id], task=REFRESH_TASK)
    return requested


@router.head(
    "/{model_id}/artifact",
    summary="Read the ETag of the current posterior",
    response_class=Response,
    responses=ARTIFACT_HEAD_RESPONSES,
)
@router.get(
    "/{model_id}/artifact",
    summary="Download the current posterior",
    response_class=Response,
    responses=ARTIFACT_RESPONSES,
)
def pull_posterior(
    model_id: uuid.UUID,
    caller: Engineer,
    resources: ResourcesDep,
    request: Request,
    if_none_match: Annotated[str | None, Header(description="ETags of cached files: 304 if one is current.")] = None,
    range_: Annotated[str | None, Header(alias="Range", description="A single range of bytes.")] = None,
    if_range: Annotated[str | None, Header(description="An ETag: the range applies only to this file.")] = None,
) -> Response:
    """Return the current posterior as safetensors. Its ETag is its SHA-256, which certificates name.

    410 once the model is destroyed.
    """
    digest = _current_posterior(resources, model_id)
    etag = f'"{digest}"'
    headers = {"ETag": etag, "Accept-Ranges": "bytes"}
    if if_none_match is not None and matches_etag(if_none_match, etag):
        return Response(status_code=304, headers=headers)
    # Read the whole file even for a range: no byte is sent before the file has been checked against its digest.
    content = resources.artifacts.get(model_id, digest)
    part = None
    if request.method == "GET" and range_ is not None and if_range in (None, etag):
        part = byte_range(range_, len(content))
    if part is None:
        return LargeResponse(content, media_type="application/octet-stream", headers=headers)
    headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{len(content)}"
    return LargeResponse(content[part.start : part.stop], 206, headers, "application/octet-stream")


def byte_range(header: str, size: int) -> range | None:
    """Return the bytes of a Range header, or None if it must be ignored (several ranges, malformed, another unit).

    RFC 9110, section 14: a range may end past the end of the file but not begin there; `-n` means the last n bytes.
    """
    match = SINGLE_RANGE.fullmatch(header.strip())
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if first and last and int(last) < int(first):
        return None
    start = int(first) if first else max(size - int(last), 0)
    if start >= size:
        raise HTTPException(
            416, f"the file has {size} bytes; request a range within them", {"Content-Range": f"bytes */{size}"}
        )
    return range(start, min(int(last) + 1, size) if first and last else size)


def matches_etag(if_none_match: str, etag: str) -> bool:
    """Compare weakly, as RFC 9110 prescribes for If-None-Match."""
    etags = [name.strip().removeprefix("W/") for name in if_none_match.split(",")]
    return "*" in etags or etag in etags


def _model(resources: Resources, model_id: uuid.UUID) -> ModelOut:
    with resources.database.reading() as session:
        return _with_version(session, find_model(session, model_id))


def _with_version(session: Session, model: Model) -> ModelOut:
    refreshes = latest_refreshes(session, [model.id])
    return model_out(model, last_version(session, model.id), refreshes.get(model.id))


def _current_posterior(resources: Resources, model_id: uuid.UUID) -> str:
    """Return the digest of the current posterior. Raises Gone if the model was destroyed."""
    with resources.database.reading() as session:
        require_existing(find_model(session, model_id))
        return current_version(session, model_id).posterior_digest


def _register_parts(resources: Resources, parts: dict[str, Content], actor: str) -> ModelOut:
    limit = resources.settings.max_body_bytes
    if len(parts["manifest"]) > limit:
        raise InvalidRegistration("manifest", f"larger than the {limit} bytes of a request without files")
    return _register(resources, _parse("manifest", Manifests, parts["manifest"]), parts, actor)


def _register(resources: Resources, manifest: Manifest, parts: dict[str, Content], actor: str) -> ModelOut:
    subjects = read_subjects(parts["subjects"], count_rows(parts["records"]))
    registration = Registration(
        name=manifest.name,
        family=manifest.family,
        posterior_kind=manifest.posterior,
        device=manifest.device,
        config=manifest.plain_config,
        layout=manifest.layout,
        policy=manifest.policy.model_dump(),
        posterior=parts["posterior"],
        records=parts["records"],
        never_seen=parts.get("never_seen"),
        lookups=[resources.hasher.lookup(Identity(s.identity_type, s.identity_value)) for s in subjects],
        identity_check=resources.hasher.check,
    )
    model_id = register(resources.database, resources.artifacts, registration, actor)
    resources.ringer.ring([model_id], task=CHECK_TASK)
    return _model(resources, model_id)


def _parse(field: str, adapter: TypeAdapter[T], content: Content) -> T:
    try:
        return adapter.validate_python(read_json(content[:]))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        # The first part of the location is the union's tag, not a field of the manifest.
        where = field_path({**first, "loc": first["loc"][1:]} if adapter is Manifests else first)
        raise InvalidRegistration(f"{field}.{where}" if where else field, first["msg"]) from None


def _content(form: FormData, name: str) -> Content:
    """Return a part's content, memory-mapped if it is a file: large files are on disk already."""
    part = form.get(name)
    if isinstance(part, UploadFile):
        return map_file(part.file)
    if isinstance(part, str):
        return part.encode()
    raise InvalidRegistration(name, f"part missing; send {', '.join(PARTS)} as multipart/form-data")
