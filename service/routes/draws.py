"""Draws of a sample set, picked by weight: what to hand to those who serve predictions."""

from __future__ import annotations

import uuid
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response

from service.http.large_response import LargeResponse
from service.resources import Engineer, Resources, ResourcesDep
from service.routes.models import BYTES, matches_etag
from service.schemas.fields import WHOLE_NUMBER
from service.store.datasets.draws import draw_file
from service.store.errors import NotDrawable
from service.store.models.registry import current_version, find_model, require_existing

router = APIRouter(prefix="/api/v1/models", tags=["models"])

MAX_COUNT = 100_000
MAX_SEED = 1 << 53
RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "safetensors with the tensor `samples` alone.", "content": BYTES},
    304: {"description": "`If-None-Match` names these draws: nothing changed."},
}


@router.get(
    "/{model_id}/draws", summary="Pick draws of the current sample set", response_class=Response, responses=RESPONSES
)
def pull_draws(
    model_id: uuid.UUID,
    caller: Engineer,
    resources: ResourcesDep,
    count: Annotated[int, Query(ge=1, le=MAX_COUNT, description="Number of draws."), WHOLE_NUMBER],
    seed: Annotated[
        int, Query(ge=0, lt=MAX_SEED, description="The same seed picks the same draws of a version."), WHOLE_NUMBER
    ] = 0,
    if_none_match: Annotated[str | None, Header(description="ETags of cached draws: 304 if one is current.")] = None,
) -> Response:
    """Return draws that were picked by weight without replacement, without their weights.

    Weights of a sample set reveal the rows that it forgot: hand these draws, not the artifact, to those who serve
    predictions. K draws cost at most K² times the epsilon of the certificate, all draws counted that a reader has of
    the version, under whatever seed. At most one draw for every ten effective draws: 409 `not-drawable` for more, and
    for a model that is no sample set. 410 once the model is destroyed.
    """
    digest = _current_sample_set(resources, model_id)
    etag = f'"{digest}-{count}-{seed}"'
    if if_none_match is not None and matches_etag(if_none_match, etag):
        return Response(status_code=304, headers={"ETag": etag})
    pieces = draw_file(resources.artifacts.get(model_id, digest), count, seed)
    return LargeResponse(b"".join(pieces), media_type="application/octet-stream", headers={"ETag": etag})


def _current_sample_set(resources: Resources, model_id: uuid.UUID) -> str:
    """Return the digest of the current sample set. Raises NotDrawable for another kind of posterior."""
    with resources.database.reading() as session:
        model = find_model(session, model_id)
        require_existing(model)
        if model.posterior_kind != "samples":
            raise NotDrawable(
                f"the posterior is {model.posterior_kind}: it has no stored draws. Download it from "
                f"/api/v1/models/{model_id}/artifact"
            )
        return current_version(session, model_id).posterior_digest
