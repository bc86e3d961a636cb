"""Whoever kept a checkpoint finds out about every change behind it, made with full write access to the database."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from lethe.log_audit import GrowingTree, audit_mirror, entry_count, replay, split_checkpoints
from lethe.verify import Rejected
from lethe.verify.checkpoints import Checkpoint, open_checkpoint
from lethe.verify.keys import load_keys
from service.store import audit
from service.store.database import Database
from service.store.log import sequencing
from service.store.log.checkpoints import write_checkpoint
from service.store.log.merkle import leaf_hash, root_of
from service.store.signing.statements import StatementSigner, key_id_of
from service.store.tables import AuditEntry, SigningKey
from tests.bundles import SIGNER

KEYS = SIGNER.public_pem.encode()
RING = load_keys(KEYS)
ENTRIES = 48
Attack = Callable[[Session, random.Random], None]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 8, 13, 257])
def test_the_growing_tree_has_the_root_of_the_whole(size: int) -> None:
    tree, leaves = GrowingTree(), [b"%d" % number for number in range(size)]
    for leaf in leaves:
        tree.add(leaf)
    assert tree.root == root_of([leaf_hash(leaf) for leaf in leaves])


@pytest.fixture
def published(database: Database) -> list[Checkpoint]:
    """A log with a checkpoint after every few entries, all of them kept by somebody else."""
    with database.writing() as session:
        # Its audit entries are not part of this log.
        session.add_all(
            SigningKey(key_id=key_id_of(key), public_key=key, use=use) for use, key in SIGNER.public_keys.items()
        )
    checkpoints = []
    for number in range(ENTRIES):
        with database.writing() as session:
            audit.record(session, f"actor-{number % 3}", f"action.{number % 5}", number, statement=f"{number:064x}")
            checkpoint = sequencing.sequence_entries(session, SIGNER) if number % 8 == 7 else None
        if checkpoint is not None:
            checkpoints.append(open_checkpoint(checkpoint.note, RING))
    return checkpoints


def leaves_of(session: Session) -> list[bytes]:
    session.expire_all()
    return [entry.encode() for entry in sequencing.read_entries(session, 0, 2 * ENTRIES)]


def change_a_column(session: Session, chance: random.Random) -> None:
    entry = session.scalars(select(AuditEntry).where(AuditEntry.leaf_index == chance.randrange(ENTRIES))).one()
    match chance.randrange(5):
        case 0:
            entry.actor += "x"
        case 1:
            entry.action = "deletion.cancelled"
        case 2:
            entry.concerns = str(chance.random())
        case 3:
            entry.details = {**entry.details, "statement": f"{chance.getrandbits(256):064x}"}
        case 4:
            entry.at += timedelta(microseconds=chance.choice([-1, 1]) * chance.randint(1, 10**9))


def remove_and_renumber(session: Session, chance: random.Random) -> None:
    """Remove an entry and close the gap."""
    removed = chance.randrange(ENTRIES)
    session.execute(delete(AuditEntry).where(AuditEntry.leaf_index == removed))
    for index in range(removed + 1, ENTRIES):
        session.execute(update(AuditEntry).where(AuditEntry.leaf_index == index).values(leaf_index=index - 1))


def remove(session: Session, chance: random.Random) -> None:
    session.execute(delete(AuditEntry).where(AuditEntry.leaf_index == chance.randrange(ENTRIES)))


def swap(session: Session, chance: random.Random) -> None:
    first, second = chance.sample(range(ENTRIES), 2)
    for old, new in ((first, -1), (second, first), (-1, second)):
        session.execute(update(AuditEntry).where(AuditEntry.leaf_index == old).values(leaf_index=new))


def truncate(session: Session, chance: random.Random) -> None:
    session.execute(delete(AuditEntry).where(AuditEntry.leaf_index >= chance.randrange(ENTRIES)))


def insert_forged(session: Session, chance: random.Random) -> None:
    position = chance.randrange(ENTRIES)
    for index in reversed(range(position, ENTRIES)):
        session.execute(update(AuditEntry).where(AuditEntry.leaf_index == index).values(leaf_index=index + 1))
    forged = AuditEntry(actor="lethe", action="deletion.completed", concerns="forged", details={}, leaf_index=position)
    session.add(forged)
    session.flush()


ATTACKS: Sequence[Attack] = (change_a_column, remove_and_renumber, remove, swap, truncate, insert_forged)


def is_detected(database: Database, published: Sequence[Checkpoint], attack: Attack, chance: random.Random) -> bool:
    with database.writing() as session:
        attack(session, chance)
        session.flush()
        leaves = leaves_of(session)
        session.rollback()
    try:
        replay(leaves, published)
    except Rejected:
        return True
    return False


def test_an_honest_log_is_accepted(database: Database, published: list[Checkpoint]) -> None:
    with database.reading() as session:
        replayed = replay(leaves_of(session), published)
    assert (replayed.entries, replayed.checkpoints) == (ENTRIES, 6)
    assert sum(replayed.actions.values()) == ENTRIES


@pytest.mark.parametrize("attack", ATTACKS, ids=[attack.__name__ for attack in ATTACKS])
def test_each_attack_is_detected(database: Database, published: list[Checkpoint], attack: Attack) -> None:
    chance = random.Random(1)
    assert all(is_detected(database, published[-1:], attack, chance) for _ in range(10))


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_ten_thousand_attacks_are_found_out(database: Database, published: list[Checkpoint]) -> None:
    chance = random.Random(2)
    for number in range(10_000):
        attack = chance.choice(ATTACKS)
        assert is_detected(database, published[-1:], attack, chance), f"{attack.__name__}, attempt {number}"


def test_a_rewritten_log_with_forged_tiles_is_found_out_by_an_older_checkpoint(
    database: Database, published: list[Checkpoint]
) -> None:
    """The worst case: whoever rewrote it has our key as well, and signs what comes after."""
    with database.reading() as session:
        leaves = leaves_of(session)
    leaves[2] = b'{"action":"forged"}'
    root = root_of([leaf_hash(leaf) for leaf in leaves])
    forged = open_checkpoint(write_checkpoint(SIGNER, ENTRIES, root), RING)
    assert replay(leaves, [forged]).entries == ENTRIES
    with pytest.raises(Rejected, match="first 8 entries do not match the checkpoint"):
        replay(leaves, [forged, published[0]])


@pytest.fixture
def mirror(database: Database, published: list[Checkpoint], tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    with database.reading() as session:
        newest = sequencing.latest_checkpoint(session)
        assert newest is not None
        (tmp_path / "checkpoints" / f"{newest.size}.txt").write_text(newest.note)
        (tmp_path / "entries.ndjson").write_bytes(b"".join(leaf + b"\n" for leaf in leaves_of(session)))
    (tmp_path / "keys.json").write_bytes(KEYS)
    return tmp_path


def test_a_mirror_is_replayed(mirror: Path) -> None:
    assert audit_mirror(mirror).entries == ENTRIES


def test_a_mirror_without_a_checkpoint_proves_nothing(mirror: Path) -> None:
    for path in (mirror / "checkpoints").iterdir():
        path.unlink()
    with pytest.raises(Rejected, match="no checkpoint"):
        audit_mirror(mirror)


def test_another_key_than_the_trusted_one_is_rejected(mirror: Path) -> None:
    with pytest.raises(Rejected, match="key that was not given"):
        audit_mirror(mirror, StatementSigner(bytes(32), bytes(31) + b"l").public_pem.encode())


def test_two_checkpoints_of_one_size_that_differ_are_a_split_view(mirror: Path) -> None:
    text = write_checkpoint(SIGNER, ENTRIES, bytes(32))
    with pytest.raises(Rejected, match="split"):
        audit_mirror(mirror, published=split_checkpoints(f"{text}\n{text}"))


def test_a_line_that_a_crash_cut_off_is_fetched_again(mirror: Path) -> None:
    path = mirror / "entries.ndjson"
    path.write_bytes(path.read_bytes()[:-5])
    assert entry_count(mirror) == ENTRIES - 1
    assert path.read_bytes().endswith(b"}\n")
