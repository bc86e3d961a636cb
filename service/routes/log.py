"""The transparency log: keys, checkpoints and proofs for anybody, entries and tiles for those who may read audits."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Response
from sqlalchemy.orm import Session

from service.resources import ResourcesDep, allowed
from service.schemas.deletions import PublicKeys, public_keys_out
from service.schemas.log import (
    LARGEST,
    LEAF,
    NOTE,
    ConsistencyOut,
    InclusionOut,
    Index,
    LeafHash,
    Size,
)
from service.store.access.tokens import Caller
from service.store.errors import NotFound
from service.store.log import sequencing as log
from service.store.log.merkle import TILE_BYTES
from service.store.signing.keys import keys_for
from service.store.states import Role
from service.store.tables import Checkpoint

router = APIRouter(prefix="/api/v1/log", tags=["log"])

LogReader = Annotated[Caller, Depends(allowed(Role.AUDITOR, Role.OPERATOR))]
MOST_ENTRIES = 1_000
LINES = "application/jsonl"
NEXT = "X-Next-Start"
NO_CHECKPOINT = "the log has no checkpoint yet: the first is signed within seconds of the first entry"
FOR_EVER, NEVER = "private, max-age=31536000, immutable", "no-cache"


def answered(media_type: str, description: str, example: str | None = None, **headers: str) -> dict[int | str, Any]:
    """For the OpenAPI document: an answer that is no JSON."""
    content: dict[str, Any] = {"schema": {"type": "string"}}
    told = {name.replace("_", "-"): {"schema": {"type": "string"}, "description": headers[name]} for name in headers}
    shown = {**content, "example": example} if example else content
    return {200: {"description": description, "content": {media_type: shown}, "headers": told}}


@router.get(
    "/checkpoint",
    response_class=Response,
    summary="The newest checkpoint, for anybody",
    responses={
        **answered("text/plain", "A signed note: the log's name, its size, its root.", NOTE, ETag="Changes with it."),
        304: {"description": "It is the one that you have."},
    },
)
def read_checkpoint(resources: ResourcesDep, if_none_match: Annotated[str | None, Header()] = None) -> Response:
    """Keep it: whatever the log shows later must continue it, which a proof of consistency tells.

    In the form of C2SP's tlog-checkpoint, with the signatures of witnesses if there are any.
    """
    with resources.database.reading() as session:
        note = log.full_note(_newest(session)).encode()
    tag = f'"{hashlib.sha256(note).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": NEVER}
    if if_none_match is not None and tag in if_none_match:
        return Response(status_code=304, headers=headers)
    return Response(note, media_type="text/plain; charset=utf-8", headers=headers)


@router.get("/keys", response_model=PublicKeys, summary="The public keys, for anybody")
def public_keys(resources: ResourcesDep) -> PublicKeys:
    """Keep them where your certificates are: receipts, certificates and callbacks are checked with them.

    Former keys stay listed, with the time from which on nothing that they signed is to be believed.
    """
    with resources.database.reading() as session:
        return public_keys_out(resources.settings, keys_for(session, resources.signer))


@router.get("/proof/inclusion", response_model=InclusionOut, summary="That an entry is in the log, for anybody")
def prove_inclusion(
    resources: ResourcesDep,
    index: Index | None = None,
    leaf: LeafHash | None = None,
    size: Annotated[Size | None, Query(description="Of which tree; by default the newest.")] = None,
) -> InclusionOut:
    """Name the entry by its place or by its leaf hash; without either it is the newest."""
    with resources.database.reading() as session:
        of = _newest(session).size if size is None else size
        place = log.find_leaf(session, bytes.fromhex(leaf)) if leaf is not None else of - 1 if index is None else index
        if index not in (None, place):
            raise NotFound("the entry with this leaf hash is at another index")
        found = log.inclusion(session, place, of)
        note = _note_of(session, of)
    proof = [step.hex() for step in found.proof]
    return InclusionOut(index=found.index, leaf=found.leaf.hex(), size=of, proof=proof, checkpoint=note)


@router.get("/proof/consistency", response_model=ConsistencyOut, summary="That the log was only added to, for anybody")
def prove_consistency(
    resources: ResourcesDep,
    old: Annotated[Size, Query(description="The size of the checkpoint that you have.")],
    new: Annotated[Size | None, Query(description="The size of the later one; by default the newest.")] = None,
) -> ConsistencyOut:
    """That the first `old` entries are the same in the tree of `new`."""
    with resources.database.reading() as session:
        to = _newest(session).size if new is None else new
        proof = [step.hex() for step in log.consistency(session, old, to)]
        return ConsistencyOut(old=old, new=to, proof=proof, checkpoint=_note_of(session, to))


@router.get(
    "/entries",
    response_class=Response,
    summary="The entries themselves",
    responses=answered(
        LINES, "One entry a line, as it was hashed.", LEAF, X_Next_Start="Where to go on; absent behind the newest."
    ),
)
def read_entries(
    caller: LogReader,
    resources: ResourcesDep,
    start: Index = 0,
    count: Annotated[int, Query(ge=1, le=MOST_ENTRIES)] = MOST_ENTRIES,
) -> Response:
    """In the order of the log. They hold commitments and identifiers, never an identity."""
    with resources.database.reading() as session:
        lines = log.entries(session, start, count)
        more = start + len(lines) < log.size_of(session)
    headers = {NEXT: str(start + len(lines))} if lines and more else {}
    return Response("".join(f"{line}\n" for line in lines), media_type=LINES, headers=headers)


@router.get(
    "/tile/{level}/{number}",
    response_class=Response,
    summary="Hashes of the tree, 256 at a time",
    responses=answered("application/octet-stream", "Hashes of 32 bytes, side by side."),
)
def read_tile(
    caller: LogReader,
    resources: ResourcesDep,
    level: Annotated[int, Path(ge=0, le=7)],
    number: Annotated[int, Path(ge=0, lt=LARGEST)],
) -> Response:
    """As in C2SP's tlog-tiles: leaves at level 0, roots of full tiles above. A full one never changes again."""
    with resources.database.reading() as session:
        hashes = log.tile(session, level, number)
    caching = {"Cache-Control": FOR_EVER if len(hashes) == TILE_BYTES else NEVER}
    return Response(hashes, media_type="application/octet-stream", headers=caching)


def _newest(session: Session) -> Checkpoint:
    found = log.latest(session)
    if found is None:
        raise NotFound(NO_CHECKPOINT)
    return found


def _note_of(session: Session, size: int) -> str | None:
    checkpoint = session.get(Checkpoint, size)
    return log.full_note(checkpoint) if checkpoint else None
