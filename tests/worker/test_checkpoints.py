"""The background threads of the log: entries are sequenced, checkpoints are published and cosigned."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import func, select
from structlog.testing import capture_logs

from lethe.verify import Rejected, verify
from service.schemas.log import public_keys_out
from service.settings import Settings, new_key, write_private_file
from service.settings.key_sources import replace_key_file
from service.settings.witnesses import parse_witnesses
from service.store import audit
from service.store.certificates import bundles
from service.store.database import Database
from service.store.log import sequencing
from service.store.log.checkpoints import parse_note
from service.store.signing.keys import keys_for, open_signer, retire, rotate
from service.store.signing.statements import StatementSigner, public_key_of
from service.store.states import SigningUse
from service.store.tables import AuditEntry, Checkpoint
from tests import samples
from tests.waiting import wait_until
from tests.witness import Witness, run_witness
from worker import checkpoints
from worker.checkpoints import Publisher, sequence_all
from worker.sweep import run_sweep

Opener = Callable[..., Publisher]


@pytest.fixture
def signer(settings: Settings, database: Database) -> StatementSigner:
    return open_signer(settings, database)


@pytest.fixture
def witness(signer: StatementSigner) -> Iterator[Witness]:
    with run_witness(signer.log_public_key) as running:
        yield running


@pytest.fixture
def open_publisher(settings: Settings) -> Iterator[Opener]:
    publishers: list[Publisher] = []

    def open_with(**changes: object) -> Publisher:
        publishers.append(Publisher.open(settings.model_copy(update=changes)))
        return publishers[-1]

    yield open_with
    for publisher in publishers:
        publisher.close()


def write(database: Database, count: int = 1) -> None:
    with database.writing() as session:
        for number in range(count):
            audit.record(session, "acme", "test.done", number)


def grow(database: Database, signer: StatementSigner, count: int = 1) -> Checkpoint:
    write(database, count)
    sequence_all(database, signer)
    return newest(database)


def newest(database: Database) -> Checkpoint:
    with database.reading() as session:
        checkpoint = sequencing.latest_checkpoint(session)
    assert checkpoint is not None
    return checkpoint


def count_unsequenced(database: Database) -> int:
    query = select(func.count()).select_from(AuditEntry).where(AuditEntry.leaf_index.is_(None))
    with database.reading() as session:
        return session.scalars(query).one()


def test_a_long_audit_trail_is_sequenced_in_many_transactions(
    database: Database, signer: StatementSigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "MAX_BATCH", 100)
    write(database, 250)
    sequence_all(database, signer)
    assert count_unsequenced(database) == 0
    with database.reading() as session:
        sizes = session.scalars(select(Checkpoint.size).order_by(Checkpoint.size)).all()
    assert sizes == [100, 200, newest(database).size]


def test_two_sweeps_sequence_each_entry_once(database: Database, signer: StatementSigner) -> None:
    write(database, 200)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: sequence_all(database, signer), range(2)))
    with database.reading() as session:
        indices = session.scalars(select(AuditEntry.leaf_index).order_by(AuditEntry.leaf_index)).all()
    assert indices == list(range(len(indices)))
    assert newest(database).size == len(indices)


def test_the_sweep_sequences_and_publishes(settings: Settings, database: Database, tmp_path: Path) -> None:
    file = tmp_path / "checkpoints.txt"
    stop = threading.Event()
    changed = settings.model_copy(update={"checkpoint_file": file})
    sweep = threading.Thread(target=run_sweep, args=(changed, stop))
    sweep.start()
    try:
        write(database)
        wait_until(lambda: not count_unsequenced(database) and newest(database).published_at, "the entry is published")
    finally:
        stop.set()
        sweep.join(timeout=20)
    assert f"\n{newest(database).size}\n" in file.read_text()


def test_a_file_holds_each_checkpoint_and_can_be_read_again(
    database: Database, signer: StatementSigner, open_publisher: Opener, tmp_path: Path
) -> None:
    file = tmp_path / "checkpoints.txt"
    sizes = []
    for _ in range(3):
        sizes.append(grow(database, signer).size)
        for _ in range(2):  # like two sweeps, or one that was restarted
            open_publisher(checkpoint_file=file).publish_newest()
    blocks = file.read_text().split("\n\n")
    notes = [
        parse_note(f"{text}\n\n{signatures}\n") for text, signatures in zip(blocks[::2], blocks[1::2], strict=False)
    ]
    assert [note.size for note in notes] == sizes
    assert newest(database).published_at is not None


def test_a_file_is_not_written_twice(database: Database, signer: StatementSigner, tmp_path: Path) -> None:
    checkpoint, file = grow(database, signer), tmp_path / "checkpoints.txt"
    for _ in range(2):
        checkpoints.append_note(file, checkpoint)
    assert file.read_text() == f"{checkpoint.note}\n"


def test_a_url_that_fails_is_tried_again(
    database: Database, signer: StatementSigner, open_publisher: Opener, witness: Witness
) -> None:
    publisher = open_publisher(checkpoint_url=SecretStr(f"{witness.url}/checkpoint?key=secret"))
    publisher.publish_newest()
    assert witness.stored == []  # there is none yet
    checkpoint = grow(database, signer)
    witness.statuses = [503]
    publisher.publish_newest()
    assert newest(database).published_at is None
    publisher.publish_newest()
    publisher.publish_newest()
    assert witness.stored == [checkpoint.note]
    assert newest(database).published_at is not None


def test_a_witness_signs_each_new_checkpoint(
    database: Database, signer: StatementSigner, open_publisher: Opener, witness: Witness
) -> None:
    publisher = open_publisher(witnesses=witness.setting)
    for count in (1, 1, 5, 300):
        grow(database, signer, count)
        publisher.publish_newest()
        signed = newest(database)
        note = parse_note(sequencing.full_note(signed))
        (configured,) = parse_witnesses(witness.setting)
        assert [signature.name for signature in note.signatures] == [signer.origin, witness.name]
        assert configured.verifies(note.text, note.signatures[1].value)
        assert signed.published_at is not None
    assert witness.answers == [200, 200, 200, 200]


def test_a_witness_that_signed_a_larger_tree_is_asked_again_from_its_size(
    database: Database, signer: StatementSigner, open_publisher: Opener, witness: Witness
) -> None:
    grow(database, signer, 3)
    open_publisher(witnesses=witness.setting).publish_newest()
    grow(database, signer, 4)
    open_publisher(witnesses=witness.setting).publish_newest()  # a new one does not know the last size
    assert witness.answers == [200, 409, 200]
    assert newest(database).cosignatures.count("\n") == 1


def test_cosignatures_are_published_with_the_checkpoint(
    database: Database, signer: StatementSigner, open_publisher: Opener, witness: Witness, tmp_path: Path
) -> None:
    file = tmp_path / "checkpoints.txt"
    grow(database, signer)
    open_publisher(witnesses=witness.setting, checkpoint_file=file).publish_newest()
    assert witness.name in file.read_text()


@pytest.mark.parametrize("fault", ["other text", "status", "rewritten", "no size"])
def test_a_witness_that_does_not_sign_blocks_no_other_destination(
    database: Database, signer: StatementSigner, open_publisher: Opener, witness: Witness, tmp_path: Path, fault: str
) -> None:
    file = tmp_path / "checkpoints.txt"
    publisher = open_publisher(witnesses=witness.setting, checkpoint_file=file)
    first = grow(database, signer)
    if fault == "other text":
        witness.signs_other_text = True
    elif fault == "rewritten":  # it signed another log with our name
        other = parse_note(first.note)
        witness.last_note = type(other)(other.origin, other.size, bytes(32), other.text, other.signatures)
    else:
        witness.statuses = [500 if fault == "status" else 409]
    publisher.publish_newest()
    assert newest(database).cosignatures == ""
    assert newest(database).published_at is None
    assert file.read_text().count(f"\n{first.size}\n") == 1
    publisher.publish_newest()
    assert file.read_text().count(f"\n{first.size}\n") == 1
    if fault in ("status", "no size"):
        assert newest(database).published_at is not None


def test_two_publishers_store_one_cosignature_of_each_witness(
    database: Database, signer: StatementSigner, open_publisher: Opener, witness: Witness
) -> None:
    checkpoint = grow(database, signer)
    first, second = open_publisher(witnesses=witness.setting), open_publisher(witnesses=witness.setting)
    first.publish_newest()
    with database.writing() as session:
        session.get_one(Checkpoint, checkpoint.size).published_at = None
    second.publish_newest()
    assert newest(database).cosignatures.count("\n") == 1


def test_a_witnessed_certificate_verifies_with_the_published_list_and_names_its_witness(
    settings: Settings, database: Database, signer: StatementSigner, witness: Witness, open_publisher: Opener
) -> None:
    deletion_id = samples.request_deletion(settings, database, 99).deletion.id
    sequence_all(database, signer)
    publisher = open_publisher(witnesses=witness.setting)
    publisher.publish_newest()
    with database.reading() as session:
        content = bundles.find_absence(session, deletion_id, caller=None).encode()
        keys = public_keys_out(publisher.settings, keys_for(session, signer)).model_dump_json().encode()
    (key,) = json.loads(keys)["witnesses"]
    verified = verify(content, keys, witnesses=[key])
    assert "cosigned by witness witness.example/w1 at" in verified.checks[-1]
    with pytest.raises(Rejected, match="cannot be checked"):
        verify(content, signer.public_pem.encode())


def test_a_download_shows_the_first_cosigned_checkpoint_once_there_is_one(
    settings: Settings, database: Database, signer: StatementSigner, witness: Witness, open_publisher: Opener
) -> None:
    """The first checkpoint that covers the entry was not cosigned: the witness sees the newest ones only."""
    deletion_id = samples.request_deletion(settings, database, 99).deletion.id
    sequence_all(database, signer)

    def download(cosigned: bool) -> bytes:
        with database.reading() as session:
            return bundles.find_absence(session, deletion_id, None, cosigned=cosigned).encode()

    first = download(cosigned=True)
    assert first == download(cosigned=False)
    grow(database, signer)
    publisher = open_publisher(witnesses=witness.setting)
    publisher.publish_newest()
    grow(database, signer)
    publisher.publish_newest()
    assert download(cosigned=False) == first
    with database.reading() as session:
        keys = public_keys_out(publisher.settings, keys_for(session, signer)).model_dump_json().encode()
    (key,) = json.loads(keys)["witnesses"]
    cosigned = download(cosigned=True)
    assert json.loads(cosigned)["envelope"] == json.loads(first)["envelope"]
    assert "cosigned by witness" in verify(cosigned, keys, witnesses=[key]).checks[-1]
    assert download(cosigned=True) == cosigned
    with pytest.raises(Rejected, match="not cosigned"):
        verify(first, keys, witnesses=[key])


def test_the_sequencer_waits_for_a_key_that_may_sign(settings: Settings, database: Database, tmp_path: Path) -> None:
    """Its log key is retired; the key file then holds the successor, as after `lethe key rotate --use log`."""
    path = tmp_path / "log.key"
    write_private_file(path, new_key())
    using_file = settings.model_copy(update={"log_key": None, "log_key_file": path})
    old, seed = open_signer(using_file, database), new_key()
    stop, successor = threading.Event(), public_key_of(base64.b64decode(seed))
    with database.writing() as session:
        rotate(session, old.log_public_key, successor, SigningUse.LOG, "ops")
        retire(session, old.log_key_id, "ops")
    with capture_logs() as lines:
        sequencer = threading.Thread(target=checkpoints.run_sequencer, args=(using_file, stop))
        sequencer.start()
        try:
            wait_until(lambda: lines, "the sequencer reports its key")
            assert newest_or_none(database) is None
            replace_key_file(path, seed)
            wait_until(lambda: not count_unsequenced(database), "the successor signs")
        finally:
            stop.set()
            sequencer.join(timeout=20)
    assert [line["event"] for line in lines] == ["key.awaited"]
    assert f"{old.log_key_id[:8]} was retired" in lines[0]["reason"]


def newest_or_none(database: Database) -> Checkpoint | None:
    with database.reading() as session:
        return sequencing.latest_checkpoint(session)
