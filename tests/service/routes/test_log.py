from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import httpx
import pytest

from service.routes.log import MAX_ENTRIES
from service.settings import Settings
from service.store import audit
from service.store.database import Database
from service.store.log import sequencing
from service.store.log.checkpoints import parse_note
from service.store.log.merkle import leaf_hash, root_of
from service.store.signing.keys import open_signer
from service.store.signing.statements import StatementSigner
from service.store.states import Role
from tests import samples
from tests.service.conftest import Api
from tests.witness import roots

LOG = "/api/v1/log"


@pytest.fixture
def signer(settings: Settings, database: Database) -> StatementSigner:
    return open_signer(settings, database)


def append_entries(database: Database, signer: StatementSigner, count: int) -> int:
    """Write entries, sequence all of them and return the size of the log."""
    with database.writing() as session:
        for number in range(count):
            audit.record(session, "acme", "test.entry", number, share=0.5)
        checkpoint = sequencing.sequence_entries(session, signer)
    assert checkpoint is not None
    return checkpoint.size


def get(api: Api, path: str, role: Role | None = None, **params: object) -> httpx.Response:
    return api.call(role, "GET", f"{LOG}/{path}", params=params)


def entries(api: Api, **params: object) -> list[str]:
    return get(api, "entries", Role.AUDITOR, **params).text.splitlines()


def hashes(proof: list[str]) -> list[bytes]:
    return [bytes.fromhex(step) for step in proof]


def test_the_newest_checkpoint_and_its_tag(api: Api, database: Database, signer: StatementSigner) -> None:
    size = append_entries(database, signer, 3)
    first = get(api, "checkpoint")
    assert first.headers["content-type"] == "text/plain; charset=utf-8"
    note = parse_note(first.text)
    assert (note.origin, note.size) == (signer.origin, size)
    etag = {"If-None-Match": first.headers["etag"]}
    again = api.call(None, "GET", f"{LOG}/checkpoint", headers=etag)
    assert (again.status_code, again.text) == (304, "")
    append_entries(database, signer, 1)
    assert parse_note(api.call(None, "GET", f"{LOG}/checkpoint", headers=etag).text).size == size + 1


def test_before_the_first_checkpoint_there_is_nothing_to_prove(api: Api) -> None:
    for path in ("checkpoint", "proof/inclusion", "proof/consistency?old=0"):
        answer = api.call(None, "GET", f"{LOG}/{path}")
        assert (answer.status_code, answer.json()["title"]) == (404, "Not found")


def test_anybody_can_replay_the_log_from_its_entries(api: Api, database: Database, signer: StatementSigner) -> None:
    size = append_entries(database, signer, 20)
    lines = entries(api)
    assert len(lines) == size
    assert root_of([leaf_hash(line.encode()) for line in lines]) == parse_note(get(api, "checkpoint").text).root
    assert json.loads(lines[-1])["details"] == {"share": 0.5}
    assert set(json.loads(lines[-1])) == {"action", "actor", "at", "concerns", "details"}


def test_entries_page_by_page(api: Api, database: Database, signer: StatementSigner) -> None:
    size = append_entries(database, signer, 10)
    whole = entries(api)
    first = get(api, "entries", Role.OPERATOR, count=4)
    assert first.text.splitlines() == whole[:4]
    assert first.headers["x-next-start"] == "4"
    remaining = get(api, "entries", Role.OPERATOR, start=4, count=MAX_ENTRIES)
    assert remaining.text.splitlines() == whole[4:]
    assert "x-next-start" not in remaining.headers
    for start in (size, size + 5):
        beyond = get(api, "entries", Role.OPERATOR, start=start)
        assert (beyond.status_code, beyond.text) == (200, "")
    assert get(api, "entries", Role.OPERATOR, count=MAX_ENTRIES + 1).status_code == 422


def test_a_receipt_leads_to_its_entry(
    api: Api, settings: Settings, database: Database, signer: StatementSigner
) -> None:
    samples.register_sample(settings, database)
    body = {"subjects": [samples.person(1)]}
    receipt = api.call(Role.COMPLIANCE, "POST", "/api/v1/deletions", json=body).json()["receipt"]
    promised = json.loads(base64.b64decode(json.loads(receipt)["envelope"]["payload"]))["predicate"]["log"]
    assert get(api, "proof/inclusion", leaf=promised["leaf"]).status_code == 404
    append_entries(database, signer, 5)
    inclusion = get(api, "proof/inclusion", leaf=promised["leaf"]).json()
    assert inclusion["leaf"] == promised["leaf"]
    assert inclusion["checkpoint"] == get(api, "checkpoint").text
    assert leaf_hash(entries(api)[inclusion["index"]].encode()).hex() == promised["leaf"]


def test_an_entry_is_proved_by_its_index(api: Api, database: Database, signer: StatementSigner) -> None:
    old = append_entries(database, signer, 4)
    new = append_entries(database, signer, 4)
    lines = [leaf_hash(line.encode()) for line in entries(api)]
    inclusion = get(api, "proof/inclusion", index=0, size=2).json()
    assert inclusion == {
        "index": 0,
        "leaf": lines[0].hex(),
        "size": 2,
        "proof": [lines[1].hex()],
        "checkpoint": None,  # the log never stopped at two entries
    }
    at_old = get(api, "proof/inclusion", index=0, size=old).json()
    assert parse_note(at_old["checkpoint"]).size == old
    newest = get(api, "proof/inclusion").json()
    assert (newest["index"], newest["size"], newest["leaf"]) == (new - 1, new, lines[-1].hex())
    both = {"index": 1, "leaf": lines[1].hex()}
    assert get(api, "proof/inclusion", **both).json()["index"] == 1


def test_a_later_log_extends_an_earlier_one(api: Api, database: Database, signer: StatementSigner) -> None:
    append_entries(database, signer, 4)
    old = parse_note(get(api, "checkpoint").text)
    append_entries(database, signer, 300)
    new = parse_note(get(api, "checkpoint").text)
    consistency = get(api, "proof/consistency", old=old.size).json()
    assert (consistency["old"], consistency["new"], consistency["checkpoint"]) == (
        old.size,
        new.size,
        get(api, "checkpoint").text,
    )
    assert roots(old.size, new.size, old.root, hashes(consistency["proof"])) == (old.root, new.root)
    assert get(api, "proof/consistency", old=old.size, new=old.size).json()["proof"] == []
    between = get(api, "proof/consistency", old=2, new=old.size + 1).json()
    assert between["checkpoint"] is None


PROBLEMS: list[tuple[str, dict[str, Any], int]] = [
    ("proof/inclusion", {"index": 10_000}, 404),
    ("proof/inclusion", {"index": 0, "size": 10_000}, 404),
    ("proof/inclusion", {"index": 0, "size": 0}, 404),
    ("proof/inclusion", {"leaf": "00" * 32}, 404),
    ("proof/inclusion", {"size": 0}, 404),
    ("proof/inclusion", {"leaf": "00"}, 422),
    ("proof/inclusion", {"index": -1}, 422),
    ("proof/inclusion", {"index": 2**63}, 422),
    ("proof/consistency", {}, 422),
    ("proof/consistency", {"old": 10_000}, 404),
    ("proof/consistency", {"old": 2, "new": 1}, 404),
    ("proof/consistency", {"old": 1, "new": 10_000}, 404),
    ("tile/0/9", {}, 404),
    ("tile/8/0", {}, 422),
    ("tile/0/-1", {}, 422),
]


def test_unknown_entries_and_sizes_are_problems(api: Api, database: Database, signer: StatementSigner) -> None:
    append_entries(database, signer, 3)
    for path, params, status in PROBLEMS:
        answer = get(api, path, Role.AUDITOR, **params)
        assert answer.status_code == status, (path, params)
        assert answer.headers["content-type"] == "application/problem+json"


def test_a_leaf_at_another_index_is_a_problem(api: Api, database: Database, signer: StatementSigner) -> None:
    append_entries(database, signer, 3)
    leaf = get(api, "proof/inclusion", index=1).json()["leaf"]
    assert get(api, "proof/inclusion", index=0, leaf=leaf).status_code == 404


def test_tiles_hold_the_tree_and_full_tiles_may_be_cached(
    api: Api, database: Database, signer: StatementSigner
) -> None:
    size = append_entries(database, signer, 300)
    whole = [leaf_hash(line.encode()) for line in entries(api)]
    full, part = (get(api, f"tile/0/{number}", Role.AUDITOR) for number in range(2))
    assert full.content + part.content == b"".join(whole)
    assert (len(full.content), len(part.content)) == (8192, 32 * (size - 256))
    assert get(api, "tile/1/0", Role.AUDITOR).content == root_of(whole[:256])
    assert "immutable" in full.headers["cache-control"]
    assert part.headers["cache-control"] == "no-cache"
    assert full.headers["content-type"] == "application/octet-stream"
    assert hashlib.sha256(b"\x01" + full.content[:64]).digest() == root_of(whole[:2])


def test_the_document_has_examples(api: Api) -> None:
    paths = api.call(None, "GET", "/openapi.json").json()["paths"]
    documented = {path: operation["get"] for path, operation in paths.items() if path.startswith(LOG)}
    checkpoint = documented[f"{LOG}/checkpoint"]["responses"]["200"]["content"]["text/plain"]
    assert parse_note(checkpoint["example"]).size == 8
    line = documented[f"{LOG}/entries"]["responses"]["200"]["content"]["application/jsonl"]["example"]
    assert json.loads(line)["action"] == "deletion.received"
    assert "security" not in documented[f"{LOG}/proof/inclusion"]
    assert "security" in documented[f"{LOG}/entries"]
