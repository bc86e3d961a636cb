"""The transparency log: every audit entry gets a place in a Merkle tree, whose newest root is signed as a checkpoint.

Entries are written in the transaction of what they tell of, and placed afterwards by a sequencer: so that intake never
waits for the log. The tree is always as large as the newest checkpoint says, since both grow in one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session

from service.store.dialect import byte_position, lock
from service.store.errors import NotFound
from service.store.log import checkpoints as notes
from service.store.log.leaves import leaf
from service.store.log.merkle import HASH_BYTES, WIDTH, Tree, leaf_hash
from service.store.signing.statements import StatementSigner
from service.store.tables import AuditEntry, Checkpoint, LogTile

CHUNK = 10_000
"""Entries in memory at once."""
WRITE_TILE = text(
    "INSERT INTO log_tiles (level, number, hashes) VALUES (:level, :number, :hashes) "
    "ON CONFLICT (level, number) DO UPDATE SET hashes = excluded.hashes"
)


@dataclass(frozen=True)
class Logged:
    """An entry, its place, and the proof that the checkpoint covers it. What a bundle holds of it never changes."""

    entry: str
    index: int
    proof: Sequence[bytes]
    checkpoint: str


@dataclass(frozen=True)
class Inclusion:
    index: int
    size: int
    leaf: bytes
    proof: Sequence[bytes]


def leaf_of(entry: AuditEntry) -> bytes:
    return leaf(entry.action, entry.actor, entry.at, entry.concerns, entry.details)


def sequence(session: Session, signer: StatementSigner, most: int | None = None) -> Checkpoint | None:
    """Place the entries that have no place yet, in order of their ids, and sign the tree they make.

    At most so many at once, or all. None if there is nothing to place.
    """
    session.flush()
    lock(session, "lethe-log")
    before = size = size_of(session)
    while hashes := _place(session, size, CHUNK if most is None else min(CHUNK, before + most - size)):
        changed = _tree(session).append(size, hashes)
        rows = [{"level": level, "number": number, "hashes": tile} for (level, number), tile in changed.items()]
        session.execute(WRITE_TILE, rows)
        size += len(hashes)
    return _sign(session, signer, size) if size > before else None


def is_behind(session: Session) -> bool:
    """Whether there is an entry without a place: a look that locks nothing."""
    return session.scalar(select(AuditEntry.id).where(AuditEntry.leaf_index.is_(None)).limit(1)) is not None


def latest(session: Session) -> Checkpoint | None:
    return session.scalar(select(Checkpoint).order_by(Checkpoint.size.desc()).limit(1))


def size_of(session: Session) -> int:
    return session.scalar(select(func.max(Checkpoint.size))) or 0


def full_note(checkpoint: Checkpoint) -> str:
    """As it goes out: with the signatures of witnesses below ours."""
    return checkpoint.note + checkpoint.cosignatures


def place_of(session: Session, concerns: object, action: str) -> Logged | None:
    """Where the entry with this action stands, by the first checkpoint that covers it. None until it is placed."""
    wanted = AuditEntry.concerns == str(concerns), AuditEntry.action == action
    placed = AuditEntry.leaf_index.is_not(None)
    entry = session.scalar(select(AuditEntry).where(*wanted, placed).order_by(AuditEntry.leaf_index).limit(1))
    if entry is None or entry.leaf_index is None:
        return None
    covering = select(Checkpoint).where(Checkpoint.size > entry.leaf_index).order_by(Checkpoint.size).limit(1)
    checkpoint = session.scalars(covering).one()
    proof = _tree(session).inclusion(entry.leaf_index, checkpoint.size)
    return Logged(leaf_of(entry).decode(), entry.leaf_index, proof, full_note(checkpoint))


def entries(session: Session, start: int, count: int) -> Sequence[str]:
    """The leaves from `start` on, at most so many, in the order of the log."""
    span = select(AuditEntry).where(AuditEntry.leaf_index >= start, AuditEntry.leaf_index < start + count)
    return [leaf_of(entry).decode() for entry in session.scalars(span.order_by(AuditEntry.leaf_index))]


def find_leaf(session: Session, wanted: bytes) -> int:
    """The index of the leaf with this hash, looked for in the tiles, the newest first."""
    place = byte_position(session, LogTile.hashes, wanted)
    holding = select(LogTile.number, place).where(LogTile.level == 0, place > 0).order_by(LogTile.number.desc())
    found = session.execute(holding.limit(1)).first()
    if found is None or (found[1] - 1) % HASH_BYTES:
        raise NotFound("no entry has this leaf hash; one that was just written has its place within two seconds")
    return int(found[0]) * WIDTH + (int(found[1]) - 1) // HASH_BYTES


def inclusion(session: Session, index: int, size: int) -> Inclusion:
    """The proof that leaf `index` is in the tree of `size` leaves."""
    _require(session, size)
    if index >= size:
        raise NotFound(f"a tree of {size} entries has no entry {index}; they are counted from 0")
    tree = _tree(session)
    return Inclusion(index, size, tree.leaf(index), tree.inclusion(index, size))


def consistency(session: Session, old: int, new: int) -> Sequence[bytes]:
    """The proof that the first `old` entries are the same in the tree of `new`."""
    _require(session, new)
    if old > new:
        raise NotFound("a proof leads from a smaller tree to a larger one: `old` must not be above `new`")
    return _tree(session).consistency(old, new)


def tile(session: Session, level: int, number: int) -> bytes:
    found = session.scalar(select(LogTile.hashes).where(LogTile.level == level, LogTile.number == number))
    if found is None:
        raise NotFound(f"the log has no tile {number} at level {level}")
    return found


def _require(session: Session, size: int) -> None:
    if size > (newest := size_of(session)):
        raise NotFound(f"the log has {newest} entries; a proof for {size} does not exist yet")


def _tree(session: Session) -> Tree:
    return Tree(lambda level, number: tile(session, level, number))


def _place(session: Session, size: int, most: int) -> Sequence[bytes]:
    """Give the next entries their places from `size` on, and return their hashes."""
    if most <= 0:
        return []
    waiting = select(AuditEntry.id).where(AuditEntry.leaf_index.is_(None)).order_by(AuditEntry.id).limit(most)
    chosen = waiting.subquery()
    placed = select(chosen.c.id, (func.row_number().over(order_by=chosen.c.id) + (size - 1)).label("place")).subquery()
    change = update(AuditEntry).where(AuditEntry.id == placed.c.id).values(leaf_index=placed.c.place)
    session.execute(change.execution_options(synchronize_session=False))
    told = select(AuditEntry.action, AuditEntry.actor, AuditEntry.at, AuditEntry.concerns, AuditEntry.details)
    rows = session.execute(told.where(AuditEntry.leaf_index >= size).order_by(AuditEntry.leaf_index))
    return [leaf_hash(leaf(*row)) for row in rows]


def _sign(session: Session, signer: StatementSigner, size: int) -> Checkpoint:
    root = _tree(session).root(size)
    checkpoint = Checkpoint(size=size, root=root, note=notes.write(signer, size, root), cosignatures="")
    session.add(checkpoint)
    session.flush()
    return checkpoint
