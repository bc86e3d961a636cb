from __future__ import annotations

import base64
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import delete, select, text
from sqlalchemy.orm import Session

from service.logs import configure_logging
from service.settings import ConfigurationError, Settings, new_key, write_private_file
from service.settings.key_sources import run_key_command
from service.store.clock import current_time
from service.store.database import Database
from service.store.errors import KeyInactive, NotFound
from service.store.signing import keys
from service.store.signing.keys import configured_signer, open_signer
from service.store.signing.statements import key_id_of
from service.store.states import SigningUse
from service.store.tables import AuditEntry, SigningKey, now
from tests.waiting import wait_until

AT_ONCE = 8


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    yield
    run_key_command.cache_clear()


def with_key(settings: Settings, seed: str | None = None) -> Settings:
    return settings.model_copy(update={"signing_key": SecretStr(seed or new_key())})


def trail(database: Database) -> list[tuple[str, str, dict[str, str]]]:
    with database.reading() as session:
        entries = session.scalars(select(AuditEntry).order_by(AuditEntry.id))
        return [(entry.action, entry.concerns, entry.details) for entry in entries]


def listed(database: Database) -> list[SigningKey]:
    with database.reading() as session:
        return list(keys.all_keys(session))


def rotate(database: Database, settings: Settings, use: SigningUse = SigningUse.STATEMENTS) -> Settings:
    """Return settings with a successor of the key, as `lethe key rotate` leaves them."""
    name = "log_key" if use == SigningUse.LOG else "signing_key"
    after = settings.model_copy(update={name: SecretStr(new_key())})
    old, new = (configured_signer(configured).public_keys[use] for configured in (settings, after))
    with database.writing() as session:
        keys.rotate(session, old, new, use, "ops")
    return after


def test_keys_are_listed_when_they_are_first_used_and_once(settings: Settings, database: Database) -> None:
    signer = open_signer(settings, database)
    assert signer.origin == settings.origin
    assert open_signer(settings, database).key_id == signer.key_id
    by_use = {key.use: key for key in listed(database)}
    assert {use: (key.key_id, key.public_key) for use, key in by_use.items()} == {
        "statements": (signer.key_id, signer.public_key),
        "log": (signer.log_key_id, signer.log_public_key),
    }
    assert keys.public_pem(by_use["statements"]) + keys.public_pem(by_use["log"]) == signer.public_pem
    for key in by_use.values():
        assert (key.retired_at, key.revoked_at, key.reason) == (None, None, None)
    assert trail(database) == [
        ("key.added", key_id_of(public_key), {"public_key": public_key.hex(), "use": use})
        for use, public_key in signer.public_keys.items()
    ]


def test_one_key_for_both_uses_is_refused(settings: Settings, database: Database) -> None:
    same = settings.model_copy(update={"log_key": settings.signing_key})
    with pytest.raises(ConfigurationError, match=r"LETHE_LOG_KEY supplies the signing key.*lethe secrets"):
        open_signer(same, database)
    assert listed(database) == []


@pytest.mark.parametrize(
    ("name", "variable", "use"),
    [("signing_key", "LETHE_SIGNING_KEY", "statements"), ("log_key", "LETHE_LOG_KEY", "log")],
)
def test_an_unlisted_key_is_refused_while_another_is_in_use_unless_it_is_added(
    settings: Settings, database: Database, name: str, variable: str, use: str
) -> None:
    open_signer(settings, database)
    other = settings.model_copy(update={name: SecretStr(new_key())})
    with pytest.raises(ConfigurationError, match=f"{variable}: .* is not in the list .*lethe key add --use {use}"):
        open_signer(other, database)
    signer = configured_signer(other)
    with pytest.raises(KeyInactive, match="is not in the list"), database.writing() as session:
        keys.require_active(session, signer)
    assert len(listed(database)) == 2
    with database.writing() as session:
        key_id = keys.add_configured(session, signer, SigningUse(use), "the disk burned", "ops")
    assert open_signer(other, database).public_keys == signer.public_keys
    assert trail(database)[-1][1] == key_id
    assert trail(database)[-1][2]["reason"] == "the disk burned"
    with pytest.raises(NotFound, match="listed already"), database.writing() as session:
        keys.add_configured(session, signer, SigningUse(use), "again", "ops")


def test_a_list_from_before_uses_gets_a_log_key(settings: Settings, database: Database) -> None:
    """The upgrade: the one key of the list signed everything, and goes on signing statements."""
    signer = configured_signer(settings)
    with database.writing() as session:
        session.add(SigningKey(key_id=signer.key_id, public_key=signer.public_key, use=None))
    open_signer(settings, database)
    assert {key.key_id: key.use for key in listed(database)} == {signer.key_id: None, signer.log_key_id: "log"}
    with pytest.raises(ConfigurationError, match=r"LETHE_SIGNING_KEY: .* is not in the list"):
        open_signer(with_key(settings), database)


def test_processes_that_start_at_once_do_not_collide(settings: Settings) -> None:
    start = threading.Barrier(AT_ONCE)

    def started() -> str:
        database = Database(settings.database)
        with database.reading():
            start.wait()
        key_id = open_signer(settings, database).key_id
        database.close()
        return key_id

    with ThreadPoolExecutor(AT_ONCE) as pool:
        key_ids = {future.result() for future in [pool.submit(started) for _ in range(AT_ONCE)]}
    database = Database(settings.database)
    assert [key.key_id for key in listed(database) if key.use == "statements"] == list(key_ids)
    assert [action for action, _, _ in trail(database)] == ["key.added"] * 2
    database.close()


@pytest.mark.parametrize("use", list(SigningUse))
def test_after_a_rotation_both_keys_sign_until_the_old_one_is_retired(
    settings: Settings, database: Database, use: SigningUse
) -> None:
    before = open_signer(settings, database)
    after = rotate(database, settings, use)
    old_id, new_id = (key_id_of(signer.public_keys[use]) for signer in (before, open_signer(after, database)))
    open_signer(settings, database)
    with database.writing() as session:
        keys.retire(session, old_id, "ops")
    open_signer(after, database)
    with pytest.raises(ConfigurationError, match=f"{old_id[:8]} was retired.*`lethe key rotate --use {use}`"):
        open_signer(settings, database)
    events = [(action, concerns, details) for action, concerns, details in trail(database)[3:]]
    assert events == [("key.rotated", old_id, {"successor": new_id}), ("key.retired", old_id, {})]


def test_a_key_that_was_never_listed_is_listed_with_its_successor(settings: Settings, database: Database) -> None:
    after = rotate(database, settings)
    assert [action for action, _, _ in trail(database)] == ["key.added", "key.added", "key.rotated"]
    open_signer(after, database)
    with pytest.raises(NotFound, match="is not in the list"):
        rotate(database, with_key(settings))


def test_a_key_is_retired_once(settings: Settings, database: Database) -> None:
    key_id = open_signer(settings, database).key_id
    with database.writing() as session:
        keys.retire(session, key_id, "ops")
    before = {key.key_id: key.retired_at for key in listed(database)}
    for unknown in (key_id, "0" * 64):
        with pytest.raises(NotFound, match="lethe key list"), database.writing() as session:
            keys.retire(session, unknown, "ops")
    assert before == {key.key_id: key.retired_at for key in listed(database)}
    assert before[key_id] is not None


def test_a_revoked_key_stops_the_start_and_the_date_moves_only_back(settings: Settings, database: Database) -> None:
    key_id = open_signer(settings, database).key_id
    first = now() - timedelta(days=2)
    for at, reason in ((first, "laptop lost"), (first - timedelta(days=1), "lost a day earlier")):
        with database.writing() as session:
            keys.revoke(session, key_id, at, reason, "ops")
    for later in (first, first - timedelta(days=1)):
        with pytest.raises(NotFound, match="lethe key list"), database.writing() as session:
            keys.revoke(session, key_id, later, "found again", "ops")
    (key,) = [key for key in listed(database) if key.key_id == key_id]
    assert (key.revoked_at, key.reason) == (first - timedelta(days=1), "lost a day earlier")
    assert trail(database)[2] == ("key.revoked", key_id, {"at": first.isoformat(), "reason": "laptop lost"})
    assert len(trail(database)) == 4
    with pytest.raises(ConfigurationError, match="was revoked"):
        open_signer(settings, database)


@pytest.mark.parametrize("use", list(SigningUse))
def test_a_running_process_whose_key_was_retired_or_revoked_signs_no_more(
    settings: Settings, database: Database, use: SigningUse
) -> None:
    signer = open_signer(settings, database)
    key_id = key_id_of(signer.public_keys[use])
    with database.writing() as session:
        keys.require_active(session, signer)
        assert keys.find_inactive(session, signer) is None
    for end in ("retired", "revoked"):
        with database.writing() as session:
            if end == "retired":
                keys.retire(session, key_id, "ops")
            else:
                keys.revoke(session, key_id, now(), "lost", "ops")
        with database.reading() as session:
            assert f"{key_id[:8]} was {end}" in str(keys.find_inactive(session, signer))
            assert "restart" in str(keys.find_inactive(session, signer))
        with pytest.raises(KeyInactive, match=f"{key_id[:8]} was {end}"), database.writing() as session:
            keys.require_active(session, signer)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_retiring_waits_for_those_who_sign_and_is_dated_after_them(settings: Settings, database: Database) -> None:
    signer, has_begun = open_signer(settings, database), threading.Event()

    def retire(session: Session) -> None:
        current_time(session)  # a time from before the wait would be too early
        has_begun.set()
        keys.retire(session, signer.key_id, "ops")

    with ThreadPoolExecutor(1) as pool:
        with database.writing() as session:
            keys.require_active(session, signer)
            retired = pool.submit(keys.end_key, database, retire)
            has_begun.wait()
            wait_until(lambda: _is_waiting_for_a_lock(database), "the retirement waits")
            assert not retired.done()
            signed_at = current_time(session)
        retired.result(timeout=10)
    (key,) = [key for key in listed(database) if key.key_id == signer.key_id]
    assert key.retired_at is not None
    assert signed_at < key.retired_at


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_retiring_gives_way_to_others_who_sign_while_a_long_publication_runs(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    signer, attempts = open_signer(settings, database), threading.Semaphore(0)
    monkeypatch.setattr(keys, "LOCK_SECONDS", 0.05)

    def retire(session: Session) -> None:
        attempts.release()
        keys.retire(session, signer.key_id, "ops")

    with ThreadPoolExecutor(1) as pool:
        with database.writing() as publication:
            keys.require_active(publication, signer)
            retired = pool.submit(keys.end_key, database, retire)
            for _ in range(2):
                assert attempts.acquire(timeout=10)
            with database.writing() as intake:  # does not wait for the publication
                keys.require_active(intake, signer)
            rotate(database, settings)  # nor does an addition to the list
        retired.result(timeout=10)
    with pytest.raises(KeyInactive), database.writing() as session:
        keys.require_active(session, signer)


def _is_waiting_for_a_lock(database: Database) -> bool:
    with database.reading() as session:
        return bool(session.scalar(text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")))


def test_the_signers_keys_come_first(settings: Settings, database: Database) -> None:
    older = open_signer(settings, database)
    newer = open_signer(rotate(database, settings), database)
    with database.reading() as session:
        for signer, other in ((older, newer), (newer, older)):
            ids = [key.key_id for key in keys.keys_for(session, signer)]
            assert ids == [signer.key_id, signer.log_key_id, other.key_id]


def test_no_private_key_is_in_logs_errors_or_audit_entries(
    settings: Settings, database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """For each source of the key, valid or damaged."""
    configure_logging("DEBUG")
    seeds, output = [new_key() for _ in range(6)], ""
    for number, seed in enumerate(seeds):
        text = seed if number % 2 else seed[:-4]
        path = tmp_path / f"{number}.key"
        write_private_file(path, text)
        source = [{"signing_key": SecretStr(text)}, {"signing_key_file": path}, {}][number // 2]
        command = {"signing_key_command": SecretStr(f"cat {path}")} if not source else {}
        using = settings.model_copy(update={"signing_key": None, **source, **command})
        with database.writing() as session:
            session.execute(delete(SigningKey))  # each is the first of its list
        try:
            output += repr(using) + repr(open_signer(using, database))
        except ConfigurationError as error:
            logging.getLogger("test").exception("refused")
            output += str(error)
    output += repr(trail(database)) + "".join(capfd.readouterr())
    assert output.count("is a placeholder or damaged") == 2 * 3  # in the error, and in its log
    assert output.count("key.added") == 3 * 2
    for seed in seeds:
        raw = base64.b64decode(seed)
        for spelling in (seed, seed[:20], raw.hex(), repr(raw)[2:-1]):
            assert spelling not in output
