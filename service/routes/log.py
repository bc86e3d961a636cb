"""Transparency log: keys, checkpoints and proofs, public by default; entries and tiles for auditors and operators."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from sqlalchemy.orm import Session

from service.resources import ResourcesDep, bearer, require_role
from service.schemas.fields import WHOLE_NUMBER
from service.schemas.log import (
    LEAF,
    MAX_SIZE,
    NOTE,
    ConsistencyOut,
    InclusionOut,
    Index,
    LeafHash,
    PublicKeys,
    Size,
    public_keys_out,
)
from service.store.access.tokens import Caller
from service.store.errors import NotFound
from service.store.log import sequencing
from service.store.log.merkle import TILE_BYTES
from service.store.signing.keys import keys_for
from service.store.states import Role
from service.store.tables import Checkpoint

router = APIRouter(prefix="/api/v1/log", tags=["log"])

LogReader = Annotated[Caller, Depends(require_role(Role.AUDITOR, Role.OPERATOR))]
MAX_ENTRIES = 1_000
JSON_LINES = "application/jsonl"
NEXT_START = "X-Next-Start"
NO_CHECKPOINT = "the log has no checkpoint yet; the first is signed within seconds of the first entry"
CACHE_FOREVER, NO_CACHE = "private, max-age=31536000, immutable", "no-cache"


def public_unless_private(*roles: Role) -> list[Any]:
    """Return dependencies that admit anybody; of a log that the operator made private, these roles."""
    require = require_role(*roles)

    async def admit(request: Request, resources: ResourcesDep) -> None:
        if not resources.settings.public_log:
            await require(request, await bearer(request))

    return [Depends(admit)]


PUBLIC = public_unless_private(Role.AUDITOR, Role.OPERATOR)
PUBLIC_KEYS = public_unless_private(*Role)
"""Whoever has a certificate needs the keys."""


def text_response(
    media_type: str, description: str, example: str | None = None, **headers: str
) -> dict[int | str, Any]:
    """Describe an answer other than JSON for the OpenAPI document."""
    content: dict[str, Any] = {"schema": {"type": "string"}}
    if example:
        content["example"] = example
    header_docs = {
        name.replace("_", "-"): {"schema": {"type": "string"}, "description": text} for name, text in headers.items()
    }
    return {200: {"description": description, "content": {media_type: content}, "headers": header_docs}}


@router.get(
    "/checkpoint",
    dependencies=PUBLIC,
    response_class=Response,
    summary="Read the latest checkpoint",
    responses={
        **text_response(
            "text/plain", "Signed note: the log's name, size and root.", NOTE, ETag="Changes with the checkpoint."
        ),
        304: {"description": "Not modified."},
    },
)
def read_checkpoint(resources: ResourcesDep, if_none_match: Annotated[str | None, Header()] = None) -> Response:
    """Public. Keep it: every later checkpoint must extend it, which a consistency proof shows.

    In the format of C2SP's tlog-checkpoint, with the signatures of witnesses if there are any.
    """
    with resources.database.reading() as session:
        note = sequencing.full_note(_latest_checkpoint(session)).encode()
    tag = f'"{hashlib.sha256(note).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": NO_CACHE}
    if if_none_match is not None and tag in if_none_match:
        return Response(status_code=304, headers=headers)
    return Response(note, media_type="text/plain; charset=utf-8", headers=headers)


@router.get("/keys", dependencies=PUBLIC_KEYS, response_model=PublicKeys, summary="List public keys")
def public_keys(resources: ResourcesDep) -> PublicKeys:
    """Public. Keep them with your certificates: they verify receipts, certificates and callbacks.

    Former keys stay listed, with the time from which their signatures are not to be trusted.
    """
    with resources.database.reading() as session:
        return public_keys_out(resources.settings, keys_for(session, resources.signer))


@router.get(
    "/proof/inclusion",
    dependencies=PUBLIC,
    response_model=InclusionOut,
    summary="Prove that an entry is in the log",
)
def prove_inclusion(
    resources: ResourcesDep,
    index: Index | None = None,
    leaf: LeafHash | None = None,
    size: Annotated[Size | None, Query(description="Size of the tree; by default the latest.")] = None,
) -> InclusionOut:
    """Public. The entry is given by index or leaf hash; without either it is the newest.

    A leaf hash is looked up among the newest 65,536 entries.
    """
    with resources.database.reading() as session:
        tree_size = _latest_checkpoint(session).size if size is None else size
        leaf_index = tree_size - 1 if index is None else index
        if leaf is not None:
            leaf_index = sequencing.find_leaf_index(session, bytes.fromhex(leaf))
        if index not in (None, leaf_index):
            raise NotFound("the entry with this leaf hash is at another index")
        inclusion = sequencing.prove_inclusion(session, leaf_index, tree_size)
        note = _note_of(session, tree_size)
    proof = [step.hex() for step in inclusion.proof]
    return InclusionOut(index=leaf_index, leaf=inclusion.leaf.hex(), size=tree_size, proof=proof, checkpoint=note)


@router.get(
    "/proof/consistency",
    dependencies=PUBLIC,
    response_model=ConsistencyOut,
    summary="Prove that the log was only appended to",
)
def prove_consistency(
    resources: ResourcesDep,
    old: Annotated[Size, Query(description="Size of the checkpoint that you have.")],
    new: Annotated[Size | None, Query(description="Size of the later checkpoint; by default the latest.")] = None,
) -> ConsistencyOut:
    """Public. Proves that the first `old` entries are the same in the tree of size `new`."""
    with resources.database.reading() as session:
        new_size = _latest_checkpoint(session).size if new is None else new
        proof = [step.hex() for step in sequencing.prove_consistency(session, old, new_size)]
        return ConsistencyOut(old=old, new=new_size, proof=proof, checkpoint=_note_of(session, new_size))


@router.get(
    "/entries",
    response_class=Response,
    summary="Read entries",
    responses=text_response(
        JSON_LINES, "One entry per line, as hashed.", LEAF, X_Next_Start="`start` of the next page; absent at the end."
    ),
)
def read_entries(
    caller: LogReader,
    resources: ResourcesDep,
    start: Index = 0,
    count: Annotated[int, Query(ge=1, le=MAX_ENTRIES), WHOLE_NUMBER] = MAX_ENTRIES,
) -> Response:
    """In log order. Entries contain commitments and identifiers, never an identity."""
    with resources.database.reading() as session:
        lines = sequencing.read_entries(session, start, count)
        has_more = start + len(lines) < sequencing.log_size(session)
    headers = {NEXT_START: str(start + len(lines))} if lines and has_more else {}
    return Response("".join(f"{line}\n" for line in lines), media_type=JSON_LINES, headers=headers)


@router.get(
    "/tile/{level}/{number}",
    response_class=Response,
    summary="Read a tile of the tree",
    responses=text_response("application/octet-stream", "Up to 256 concatenated hashes of 32 bytes."),
)
def read_tile(
    caller: LogReader,
    resources: ResourcesDep,
    level: Annotated[int, Path(ge=0, le=7)],
    number: Annotated[int, Path(ge=0, lt=MAX_SIZE)],
) -> Response:
    """As in C2SP's tlog-tiles: leaves at level 0, roots of full tiles above. A full tile never changes."""
    with resources.database.reading() as session:
        hashes = sequencing.read_tile(session, level, number)
    headers = {"Cache-Control": CACHE_FOREVER if len(hashes) == TILE_BYTES else NO_CACHE}
    return Response(hashes, media_type="application/octet-stream", headers=headers)


def _latest_checkpoint(session: Session) -> Checkpoint:
    checkpoint = sequencing.latest_checkpoint(session)
    if checkpoint is None:
        raise NotFound(NO_CHECKPOINT)
    return checkpoint


def _note_of(session: Session, size: int) -> str | None:
    checkpoint = session.get(Checkpoint, size)
    return sequencing.full_note(checkpoint) if checkpoint else None
