"""The transparency log: every audit entry becomes a leaf of a Merkle tree, whose newest root is signed as a checkpoint.

An entry is written in the transaction of the event it records, and gets its leaf index later from a sequencer, so that
intake never waits for the log. The tree always has the size of the newest checkpoint, since one transaction grows both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session

from service.store.dialect import byte_position, chunks, lock
from service.store.errors import NotFound
from service.store.log import merkle
from service.store.log.checkpoints import write_checkpoint
from service.store.log.leaves import encode_leaf
from service.store.log.merkle import HASH_BYTES, WIDTH, Tree
from service.store.signing.keys import require_active
from service.store.signing.statements import StatementSigner
from service.store.tables import AuditEntry, Checkpoint, LogTile

CHUNK = 10_000
"""Entries held in memory at once."""
SEARCHED_TILES = 256
"""Tiles in which a leaf hash is looked up: 2 MB."""
WRITE_TILE = text(
    "INSERT INTO log_tiles (level, number, hashes) VALUES (:level, :number, :hashes) "
    "ON CONFLICT (level, number) DO UPDATE SET hashes = excluded.hashes"
)


@dataclass(frozen=True)
class LoggedEntry:
    """An entry with its leaf index and the proof that a checkpoint covers it. None of it ever changes."""

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


def entry_leaf(entry: AuditEntry) -> bytes:
    return encode_leaf(entry.action, entry.actor, entry.at, entry.concerns, entry.details)


def sequence_entries(session: Session, signer: StatementSigner, most: int | None = None) -> Checkpoint | None:
    """Give the new entries leaf indices in the order of their ids, and sign the resulting tree.

    Sequences at most `most` entries, or all. None if there are no new entries. Raises KeyInactive if the log key may
    not sign any more.
    """
    session.flush()
    require_active(session, signer)
    lock(session, "lethe-log")
    before = size = log_size(session)
    while hashes := _assign_indices(session, size, CHUNK if most is None else min(CHUNK, before + most - size)):
        changed = _tree(session).append(size, hashes)
        rows = [{"level": level, "number": number, "hashes": tile} for (level, number), tile in changed.items()]
        session.execute(WRITE_TILE, rows)
        size += len(hashes)
    return _sign(session, signer, size) if size > before else None


def has_unsequenced_entries(session: Session) -> bool:
    """Whether an entry has no leaf index yet. Locks nothing."""
    return session.scalar(select(AuditEntry.id).where(AuditEntry.leaf_index.is_(None)).limit(1)) is not None


def latest_checkpoint(session: Session) -> Checkpoint | None:
    return session.scalar(select(Checkpoint).order_by(Checkpoint.size.desc()).limit(1))


def log_size(session: Session) -> int:
    return session.scalar(select(func.max(Checkpoint.size))) or 0


def full_note(checkpoint: Checkpoint) -> str:
    """Return the note as published: with the witnesses' signatures below ours."""
    return checkpoint.note + checkpoint.cosignatures


def find_logged_entry(
    session: Session, concerns: object, action: str, statement: str | None = None, *, cosigned: bool = False
) -> LoggedEntry | None:
    """Return the entry with its proof for the first checkpoint that covers it. None until it is sequenced.

    With `statement`, the entry that names this statement. With `cosigned`, the proof is for the first checkpoint that a
    witness cosigned, if there is one already.
    """
    matches = AuditEntry.concerns == str(concerns), AuditEntry.action == action, AuditEntry.leaf_index.is_not(None)
    entries = session.scalars(select(AuditEntry).where(*matches).order_by(AuditEntry.leaf_index)).all()
    entry = next((entry for entry in entries if statement in (None, entry.details.get("statement"))), None)
    if entry is None or entry.leaf_index is None:
        return None
    checkpoint = _covering_checkpoint(session, entry.leaf_index, cosigned=cosigned)
    return _prove(_tree(session), entry, entry.leaf_index, checkpoint)


def find_logged_entries(session: Session, concerns: Iterable[str], action: str) -> Mapping[str, LoggedEntry]:
    """Return the sequenced entries about these, by what they concern, with proofs for the latest checkpoint."""
    checkpoint, tree = latest_checkpoint(session), _tree(session)
    logged: dict[str, LoggedEntry] = {}
    for chunk in chunks(concerns):
        query = select(AuditEntry).where(AuditEntry.concerns.in_(chunk), AuditEntry.action == action)
        for entry in session.scalars(query):
            if checkpoint is not None and entry.leaf_index is not None:
                logged[entry.concerns] = _prove(tree, entry, entry.leaf_index, checkpoint)
    return logged


def read_entries(session: Session, start: int, count: int) -> Sequence[str]:
    """Return up to `count` leaves from index `start`, in log order."""
    span = select(AuditEntry).where(AuditEntry.leaf_index >= start, AuditEntry.leaf_index < start + count)
    return [entry_leaf(entry).decode() for entry in session.scalars(span.order_by(AuditEntry.leaf_index))]


def find_leaf_index(session: Session, leaf_hash: bytes) -> int:
    """Return the index of the leaf with this hash. Searches the newest tiles only, since anybody may ask."""
    position = byte_position(session, LogTile.hashes, leaf_hash)
    oldest = (log_size(session) - 1) // WIDTH - SEARCHED_TILES
    newest = select(LogTile.number, position).where(LogTile.level == 0, LogTile.number > oldest, position > 0)
    row = session.execute(newest.order_by(LogTile.number.desc()).limit(1)).first()
    if row is None or (row[1] - 1) % HASH_BYTES:
        raise NotFound(
            f"none of the newest {SEARCHED_TILES * WIDTH} entries has this leaf hash; a new entry is sequenced within "
            "two seconds, the index of an old one is in its bundle"
        )
    return int(row[0]) * WIDTH + (int(row[1]) - 1) // HASH_BYTES


def prove_inclusion(session: Session, index: int, size: int) -> Inclusion:
    """Prove that leaf `index` is in the tree of `size` leaves."""
    _require_size(session, size)
    if index >= size:
        raise NotFound(f"entry {index} is not in a tree of {size} entries; indices start at 0")
    tree = _tree(session)
    return Inclusion(index, size, tree.leaf(index), tree.inclusion(index, size))


def prove_consistency(session: Session, old: int, new: int) -> Sequence[bytes]:
    """Prove that the tree of `new` leaves begins with the tree of `old` leaves."""
    _require_size(session, new)
    if old > new:
        raise NotFound("consistency is proved from a smaller tree to a larger one: `old` must not exceed `new`")
    return _tree(session).consistency(old, new)


def read_tile(session: Session, level: int, number: int) -> bytes:
    hashes = session.scalar(select(LogTile.hashes).where(LogTile.level == level, LogTile.number == number))
    if hashes is None:
        raise NotFound(f"tile {number} at level {level} not found in the log")
    return hashes


def _covering_checkpoint(session: Session, index: int, *, cosigned: bool) -> Checkpoint:
    covering = select(Checkpoint).where(Checkpoint.size > index).order_by(Checkpoint.size).limit(1)
    witnessed = session.scalar(covering.where(Checkpoint.cosignatures != "")) if cosigned else None
    return witnessed or session.scalars(covering).one()


def _prove(tree: Tree, entry: AuditEntry, index: int, checkpoint: Checkpoint) -> LoggedEntry:
    return LoggedEntry(entry_leaf(entry).decode(), index, tree.inclusion(index, checkpoint.size), full_note(checkpoint))


def _require_size(session: Session, size: int) -> None:
    if size > (current := log_size(session)):
        raise NotFound(f"the log has {current} entries; a proof for {size} does not exist yet")


def _tree(session: Session) -> Tree:
    return Tree(lambda level, number: read_tile(session, level, number))


def _assign_indices(session: Session, size: int, most: int) -> Sequence[bytes]:
    """Give the next entries their leaf indices from `size` on, and return their hashes."""
    if most <= 0:
        return []
    waiting = select(AuditEntry.id).where(AuditEntry.leaf_index.is_(None)).order_by(AuditEntry.id).limit(most)
    new = waiting.subquery()
    indexed = select(new.c.id, (func.row_number().over(order_by=new.c.id) + (size - 1)).label("leaf_index")).subquery()
    change = update(AuditEntry).where(AuditEntry.id == indexed.c.id).values(leaf_index=indexed.c.leaf_index)
    session.execute(change.execution_options(synchronize_session=False))
    fields = select(AuditEntry.action, AuditEntry.actor, AuditEntry.at, AuditEntry.concerns, AuditEntry.details)
    rows = session.execute(fields.where(AuditEntry.leaf_index >= size).order_by(AuditEntry.leaf_index))
    return [merkle.leaf_hash(encode_leaf(*row)) for row in rows]


def _sign(session: Session, signer: StatementSigner, size: int) -> Checkpoint:
    root = _tree(session).root(size)
    checkpoint = Checkpoint(size=size, root=root, note=write_checkpoint(signer, size, root), cosignatures="")
    session.add(checkpoint)
    session.flush()
    return checkpoint
