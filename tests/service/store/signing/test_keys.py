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
from sqlalchemy import select

from service.logs import configure_logging
from service.settings import ConfigurationError, Settings, new_key, write_private_file
from service.settings.key_sources import run_key_command
from service.store.database import Database
from service.store.errors import NotFound
from service.store.signing import keys
from service.store.signing.keys import configured_signer, open_signer
from service.store.signing.statements import StatementSigner
from service.store.tables import AuditEntry, SigningKey, now

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


def test_a_key_is_listed_when_it_is_first_used_and_once(settings: Settings, database: Database) -> None:
    signer = open_signer(settings, database)
    assert signer.origin == settings.origin
    assert open_signer(settings, database).key_id == signer.key_id
    (key,) = listed(database)
    assert (key.key_id, key.public_key, keys.public_pem(key)) == (signer.key_id, signer.public_key, signer.public_pem)
    assert (key.retired_at, key.revoked_at, key.reason) == (None, None, None)
    assert trail(database) == [("key.added", signer.key_id, {"public_key": signer.public_key.hex()})]


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
    assert [key.key_id for key in listed(database)] == list(key_ids)
    assert [action for action, _, _ in trail(database)] == ["key.added"]
    database.close()


def test_after_a_rotation_both_keys_sign_until_the_old_one_is_retired(settings: Settings, database: Database) -> None:
    after = with_key(settings)
    old, new = (configured_signer(configured) for configured in (settings, after))
    with database.writing() as session:  # the old key was never listed: it is older than the list
        assert keys.rotate(session, old.public_key, new.public_key, "ops") == (old.key_id, new.key_id)
    assert {open_signer(configured, database).key_id for configured in (settings, after)} == {old.key_id, new.key_id}
    with database.writing() as session:
        keys.retire(session, old.key_id, "ops")
    open_signer(after, database)
    with pytest.raises(ConfigurationError, match=f"{old.key_id[:8]} was retired.*`lethe key rotate`"):
        open_signer(settings, database)
    events = [(action, concerns) for action, concerns, _ in trail(database)]
    assert events == [
        ("key.added", old.key_id),
        ("key.added", new.key_id),
        ("key.rotated", old.key_id),
        ("key.retired", old.key_id),
    ]
    assert trail(database)[2][2] == {"successor": new.key_id}


def test_a_key_is_retired_once(settings: Settings, database: Database) -> None:
    key_id = open_signer(settings, database).key_id
    with database.writing() as session:
        keys.retire(session, key_id, "ops")
    (before,) = listed(database)
    for unknown in (key_id, "0" * 64):
        with pytest.raises(NotFound, match="lethe key list"), database.writing() as session:
            keys.retire(session, unknown, "ops")
    (after,) = listed(database)
    assert after.retired_at == before.retired_at is not None


def test_a_revoked_key_stops_the_start_and_the_date_moves_only_back(settings: Settings, database: Database) -> None:
    key_id = open_signer(settings, database).key_id
    first = now() - timedelta(days=2)
    for at, reason in ((first, "laptop lost"), (first - timedelta(days=1), "lost a day earlier")):
        with database.writing() as session:
            keys.revoke(session, key_id, at, reason, "ops")
    for later in (first, first - timedelta(days=1)):
        with pytest.raises(NotFound, match="lethe key list"), database.writing() as session:
            keys.revoke(session, key_id, later, "found again", "ops")
    (key,) = listed(database)
    assert (key.revoked_at, key.reason) == (first - timedelta(days=1), "lost a day earlier")
    assert trail(database)[1] == ("key.revoked", key_id, {"at": first.isoformat(), "reason": "laptop lost"})
    assert len(trail(database)) == 3
    with pytest.raises(ConfigurationError, match="was revoked"):
        open_signer(settings, database)


def test_the_signers_key_comes_first_even_if_it_is_not_listed(settings: Settings, database: Database) -> None:
    older, newer = (open_signer(with_key(settings), database) for _ in range(2))
    unlisted = StatementSigner(with_key(settings).signing_key_bytes())
    with database.reading() as session:
        for signer, order in ((older, [older, newer]), (newer, [newer, older]), (unlisted, [unlisted, newer, older])):
            assert [key.key_id for key in keys.keys_for(session, signer)] == [expected.key_id for expected in order]
    assert len(listed(database)) == 2


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
        try:
            output += repr(using) + repr(open_signer(using, database))
        except ConfigurationError as error:
            logging.getLogger("test").exception("refused")
            output += str(error)
    output += repr(trail(database)) + "".join(capfd.readouterr())
    assert output.count("is a placeholder or damaged") == 2 * 3  # in the error, and in its log
    assert output.count("key.added") == 3
    for seed in seeds:
        raw = base64.b64decode(seed)
        for spelling in (seed, seed[:20], raw.hex(), repr(raw)[2:-1]):
            assert spelling not in output
