from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations, pairwise

import pytest
from sqlalchemy import event, select

from service.store import audit
from service.store.database import Database
from service.store.errors import NotFound
from service.store.log import sequencing
from service.store.log.checkpoints import parse_note
from service.store.log.merkle import leaf_hash, node_hash, root_of
from service.store.signing.statements import StatementSigner, key_id_of
from service.store.tables import AuditEntry, Checkpoint, SigningKey
from tests.witness import roots

SIGNER = StatementSigner(bytes(range(32)), bytes(range(32, 64)), "lethe.example/log")


@pytest.fixture(autouse=True)
def _listed_keys(database: Database) -> None:
    """List the signer's keys without entries in the log."""
    with database.writing() as session:
        for use, public_key in SIGNER.public_keys.items():
            session.add(SigningKey(key_id=key_id_of(public_key), public_key=public_key, use=use))


def write(database: Database, *concerns: object, action: str = "thing.done") -> None:
    with database.writing() as session:
        for subject in concerns:
            audit.record(session, "acme", action, subject, number=1, share=0.25)


def sequence(database: Database, most: int | None = None) -> Checkpoint | None:
    with database.writing() as session:
        return sequencing.sequence_entries(session, SIGNER, most)


def sizes(database: Database) -> Sequence[int]:
    with database.reading() as session:
        return session.scalars(select(Checkpoint.size).order_by(Checkpoint.size)).all()


def compute_root(leaf: bytes, index: int, size: int, proof: Sequence[bytes]) -> bytes:
    """Return the root that an inclusion proof leads to (RFC 9162, 2.1.3.2)."""
    root, position, last = leaf, index, size - 1
    for sibling in proof:
        if position % 2 or position == last:
            root = node_hash(sibling, root)
            while position % 2 == 0 and position:
                position, last = position >> 1, last >> 1
        else:
            root = node_hash(root, sibling)
        position, last = position >> 1, last >> 1
    assert last == 0
    return root


def check_whole(database: Database) -> Sequence[AuditEntry]:
    """Check that the log has no gaps and all checkpoints are correct and consistent. Return the entries."""
    with database.reading() as session:
        entries = session.scalars(select(AuditEntry).order_by(AuditEntry.leaf_index)).all()
        checkpoints = session.scalars(select(Checkpoint).order_by(Checkpoint.size)).all()
        assert [entry.leaf_index for entry in entries] == list(range(len(entries)))
        assert checkpoints[-1].size == len(entries)
        hashes = [leaf_hash(sequencing.entry_leaf(entry)) for entry in entries]
        for checkpoint in checkpoints:
            assert checkpoint.root == root_of(hashes[: checkpoint.size])
            assert parse_note(checkpoint.note).root == checkpoint.root
        pairs = list(combinations(checkpoints, 2))
        for old, new in random.Random(3).sample(pairs, min(len(pairs), 200)) + list(pairwise(checkpoints)):
            proof = sequencing.prove_consistency(session, old.size, new.size)
            assert roots(old.size, new.size, old.root, proof) == (old.root, new.root)
    return entries


def test_entries_get_indices_and_a_signed_checkpoint(database: Database) -> None:
    write(database, "a", "b", "c")
    with database.reading() as session:
        assert sequencing.has_unsequenced_entries(session)
        assert sequencing.latest_checkpoint(session) is None
    checkpoint = sequence(database)
    assert checkpoint is not None
    assert checkpoint.size == 3
    note = parse_note(checkpoint.note)
    assert (note.origin, note.size, note.root) == ("lethe.example/log", 3, checkpoint.root)
    assert [entry.concerns for entry in check_whole(database)] == ["a", "b", "c"]
    with database.reading() as session:
        assert not sequencing.has_unsequenced_entries(session)
        assert sequencing.latest_checkpoint(session).size == 3  # type: ignore[union-attr]


def test_no_checkpoint_without_new_entries(database: Database) -> None:
    assert sequence(database) is None
    write(database, "a")
    assert sequence(database) is not None
    assert sequence(database) is None
    assert sizes(database) == [1]


def test_entries_of_the_same_transaction_are_sequenced_with_it_or_not_at_all(database: Database) -> None:
    with database.writing() as session:
        audit.record(session, "acme", "thing.done", "lost")
        assert sequencing.sequence_entries(session, SIGNER) is not None
        session.rollback()
    with database.writing() as session:
        audit.record(session, "acme", "thing.done", "kept")
        assert sequencing.sequence_entries(session, SIGNER) is not None
    assert [entry.concerns for entry in check_whole(database)] == ["kept"]


def test_many_entries_are_sequenced_in_chunks(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequencing, "CHUNK", 100)
    write(database, *range(950))
    placed: list[int] = []
    while checkpoint := sequence(database, most=300):
        placed.append(checkpoint.size)
    assert placed == [300, 600, 900, 950]
    write(database, *range(450))
    assert sequence(database).size == 1400  # type: ignore[union-attr]
    assert [entry.concerns for entry in check_whole(database)] == [*map(str, range(950)), *map(str, range(450))]


def test_an_entrys_index_and_proof_never_change(database: Database) -> None:
    write(database, *range(5))
    write(database, "certificate-1", action="certificate.issued")
    with database.reading() as session:
        assert sequencing.find_logged_entry(session, "certificate-1", "certificate.issued") is None
    sequence(database)
    with database.reading() as session:
        first = sequencing.find_logged_entry(session, "certificate-1", "certificate.issued")
    for _ in range(3):
        write(database, *range(7))
        sequence(database)
    with database.reading() as session:
        assert sequencing.find_logged_entry(session, "certificate-1", "certificate.issued") == first
        assert sequencing.find_logged_entry(session, "certificate-1", "something.else") is None
    assert first is not None
    note = parse_note(first.checkpoint)
    assert (first.index, note.size) == (5, 6)
    assert compute_root(leaf_hash(first.entry.encode()), 5, 6, first.proof) == note.root


def test_a_logged_entry_includes_the_witnesses_signatures(database: Database) -> None:
    write(database, "a")
    sequence(database)
    with database.writing() as session:
        session.get_one(Checkpoint, 1).cosignatures = "— witness AAAA\n"
    with database.reading() as session:
        logged = sequencing.find_logged_entry(session, "a", "thing.done")
    assert logged is not None
    assert logged.checkpoint.endswith("=\n— witness AAAA\n")


def test_every_entry_can_be_proved_in_every_tree(database: Database) -> None:
    for size in (1, 2, 5, 300):
        write(database, *range(size))
        sequence(database)
    entries = check_whole(database)
    with database.reading() as session:
        for checkpoint in session.scalars(select(Checkpoint)):
            for index in {0, 1, checkpoint.size // 2, checkpoint.size - 1} & set(range(checkpoint.size)):
                inclusion = sequencing.prove_inclusion(session, index, checkpoint.size)
                assert inclusion.leaf == leaf_hash(sequencing.entry_leaf(entries[index]))
                assert compute_root(inclusion.leaf, index, checkpoint.size, inclusion.proof) == checkpoint.root


def test_a_leaf_is_found_by_its_hash(database: Database) -> None:
    write(database, *range(600))
    sequence(database)
    with database.reading() as session:
        for index in (0, 255, 256, 599):
            assert sequencing.find_leaf_index(session, sequencing.prove_inclusion(session, index, 600).leaf) == index
        third, fourth = (sequencing.prove_inclusion(session, index, 600).leaf for index in (3, 4))
        for stranger in (bytes(32), third[16:] + fourth[:16]):
            with pytest.raises(NotFound, match="none of the newest 65536 entries has this leaf hash"):
                sequencing.find_leaf_index(session, stranger)


def test_only_the_newest_tiles_are_searched(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    write(database, *range(512))
    sequence(database)
    monkeypatch.setattr(sequencing, "SEARCHED_TILES", 1)
    with database.reading() as session:
        leaves = [sequencing.prove_inclusion(session, index, 512).leaf for index in (255, 256)]
        assert sequencing.find_leaf_index(session, leaves[1]) == 256
        with pytest.raises(NotFound, match="index of an old one is in its bundle"):
            sequencing.find_leaf_index(session, leaves[0])


def test_leaves_are_read_in_the_order_of_the_log(database: Database) -> None:
    write(database, *range(10))
    sequence(database)
    write(database, "unplaced")
    with database.reading() as session:
        whole = sequencing.read_entries(session, 0, 100)
        assert [text.split('"concerns":"')[1].split('"')[0] for text in whole] == [str(n) for n in range(10)]
        assert sequencing.read_entries(session, 3, 4) == whole[3:7]
        assert sequencing.read_entries(session, 10, 4) == []


@pytest.mark.parametrize(
    "ask",
    [
        lambda session: sequencing.prove_inclusion(session, 3, 3),
        lambda session: sequencing.prove_inclusion(session, 0, 4),
        lambda session: sequencing.prove_inclusion(session, 0, 0),
        lambda session: sequencing.prove_consistency(session, 1, 4),
        lambda session: sequencing.prove_consistency(session, 3, 2),
        lambda session: sequencing.read_tile(session, 0, 1),
        lambda session: sequencing.read_tile(session, 1, 0),
    ],
)
def test_unknown_sizes_and_tiles_are_not_found(database: Database, ask: Callable[[object], object]) -> None:
    write(database, *range(3))
    sequence(database)
    with database.reading() as session, pytest.raises(NotFound):
        ask(session)


def test_a_proof_reads_a_few_rows_only(database: Database) -> None:
    write(database, *range(1_000))
    sequence(database)
    statements: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    with database.reading() as session:
        sequencing.prove_inclusion(session, 500, 1_000)
    assert len(statements) <= 5


def test_writers_that_commit_out_of_order_and_two_sequencers(database: Database) -> None:
    """Ids are assigned before the commit, so a newer entry can become visible first."""
    writers, rounds = 4, 12
    together = threading.Barrier(writers)
    ended = threading.Event()

    def keep_writing(writer: int) -> None:
        draw = random.Random(writer)
        for number in range(rounds):
            together.wait(timeout=60)
            with database.writing() as session:
                for part in range(draw.randrange(1, 40)):
                    audit.record(session, f"writer-{writer}", "thing.done", f"{writer}-{number}-{part}")
                session.flush()  # ids are assigned; the order of commits is random

    def keep_sequencing(_: int) -> None:
        while not ended.wait(0.01):
            sequence(database, most=37)

    with ThreadPoolExecutor(writers + 2) as pool:
        sequencers = [pool.submit(keep_sequencing, number) for number in range(2)]
        try:
            list(pool.map(keep_writing, range(writers)))
        finally:
            ended.set()
        for sequencer in sequencers:
            sequencer.result()
    while sequence(database, most=37) is not None:
        pass
    entries = check_whole(database)
    assert len({entry.concerns for entry in entries}) == len(entries) > writers * rounds
    assert len(sizes(database)) > 10


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_an_older_entry_that_is_committed_later_gets_a_later_index(database: Database) -> None:
    with database.writing() as late:
        audit.record(late, "acme", "thing.done", "first id")
        late.flush()
        write(database, "second id")
        assert sequence(database).size == 1  # type: ignore[union-attr]
    assert sequence(database).size == 2  # type: ignore[union-attr]
    assert [entry.concerns for entry in check_whole(database)] == ["second id", "first id"]
