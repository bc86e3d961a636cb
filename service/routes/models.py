"""Models: registration, what is current, and its posterior to pull."""

from __future__ import annotations

import uuid
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import Field, TypeAdapter, ValidationError
from starlette.datastructures import FormData, UploadFile

from service.errors import field_path
from service.resources import Engineer, ModelReader, Resources, ResourcesDep
from service.schemas import IdentityIn, Manifest, ModelOut, model_out
from service.store.doorbell import CHECK_TASK
from service.store.errors import InvalidRegistration
from service.store.identities import Identity
from service.store.models import Registration, current_version, find_model, register

router = APIRouter(prefix="/api/v1/models", tags=["models"])

T = TypeVar("T")
Subjects = TypeAdapter(Annotated[list[IdentityIn], Field(min_length=1)])
PARTS = {
    "manifest": "JSON: name, family, config, policy.",
    "posterior": "safetensors: the tensors of the posterior (`mean`, `std`).",
    "records": "safetensors: the training data, one row for each record (`x`).",
    "subjects": "JSON list: whose each row is, in the same order.",
}
OPTIONAL_PARTS = {
    "never_seen": "safetensors: rows that the model was not trained on (`x`), with which certificates compare the "
    "forgotten ones. Kept as long as the model: send none that somebody could ask to erase.",
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


@router.post("", status_code=201, response_model=ModelOut, summary="Register a model", openapi_extra=MULTIPART)
async def register_model(request: Request, caller: Engineer, resources: ResourcesDep) -> ModelOut:
    """Everything is checked before anything is stored. The body is read only once the token is known to be good."""
    most = len(PARTS) + len(OPTIONAL_PARTS)
    async with request.form(max_files=most, max_fields=most) as form:
        parts = {name: await _read(form, name) for name in PARTS}
        parts |= {name: await _read(form, name) for name in OPTIONAL_PARTS if name in form}
    return await run_in_threadpool(_register, resources, parts, caller.name)


@router.get("/{model_id}", response_model=ModelOut, summary="A model and its current version")
def read_model(model_id: uuid.UUID, caller: ModelReader, resources: ResourcesDep) -> ModelOut:
    return _model(resources, model_id)


@router.get("/{model_id}/artifact", summary="Pull the current posterior", response_class=Response)
def pull_posterior(model_id: uuid.UUID, caller: Engineer, resources: ResourcesDep) -> Response:
    """The forgotten version as safetensors; its SHA-256 is the ETag and is what certificates name."""
    digest = _model(resources, model_id).posterior_sha256
    return Response(
        resources.artifacts.get(model_id, digest),
        media_type="application/octet-stream",
        headers={"ETag": f'"{digest}"'},
    )


def _model(resources: Resources, model_id: uuid.UUID) -> ModelOut:
    with resources.database.reading() as session:
        return model_out(find_model(session, model_id), current_version(session, model_id))


def _register(resources: Resources, parts: dict[str, bytes], actor: str) -> ModelOut:
    manifest = _parse("manifest", TypeAdapter(Manifest), parts["manifest"])
    subjects = _parse("subjects", Subjects, parts["subjects"])
    registration = Registration(
        name=manifest.name,
        family=manifest.family,
        config=manifest.config.model_dump(),
        policy=manifest.policy.model_dump(),
        posterior=parts["posterior"],
        records=parts["records"],
        never_seen=parts.get("never_seen"),
        lookups=[resources.hasher.lookup(Identity(s.identity_type, s.identity_value)) for s in subjects],
    )
    model_id = register(resources.database, resources.artifacts, registration, actor)
    resources.doorbell.ring(model_id, task=CHECK_TASK)
    return _model(resources, model_id)


def _parse(field: str, adapter: TypeAdapter[T], content: bytes) -> T:
    try:
        return adapter.validate_json(content)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = field_path(first)
        raise InvalidRegistration(f"{field}.{where}" if where else field, first["msg"]) from None


async def _read(form: FormData, name: str) -> bytes:
    part = form.get(name)
    if isinstance(part, UploadFile):
        return await part.read()
    if isinstance(part, str):
        return part.encode()
    raise InvalidRegistration(name, f"the part is missing; send {', '.join(PARTS)} as multipart/form-data")
