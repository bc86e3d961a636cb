from __future__ import annotations

import hashlib
from datetime import UTC, datetime

from cryptography.hazmat.primitives.serialization import load_pem_public_key
from pydantic import SecretStr
from sqlalchemy import delete

from service.settings import Settings, new_key
from service.store.database import Database
from service.store.signing import keys
from service.store.signing.keys import configured_signer, open_signer
from service.store.tables import SigningKey
from tests.service.conftest import Api


def test_anybody_gets_all_keys_the_current_first(settings: Settings, database: Database, api: Api) -> None:
    signer = configured_signer(settings)
    revoked_at = datetime(2026, 11, 16, 9, 30, tzinfo=UTC)
    other = open_signer(settings.model_copy(update={"signing_key": SecretStr(new_key())}), database)
    with database.writing() as session:
        keys.retire(session, other.key_id, "ops")
        keys.revoke(session, other.key_id, revoked_at, "laptop lost", "ops")
    listed = api.call(None, "GET", "/api/v1/log/keys").json()
    assert listed["origin"] == "localhost/lethe"
    current, former = listed["keys"]
    assert (current["keyid"], former["keyid"]) == (signer.key_id, other.key_id)
    assert current["public_key_pem"] == signer.public_pem
    assert [current[name] for name in ("retired_at", "revoked_at", "reason")] == [None, None, None]
    assert (former["revoked_at"], former["reason"]) == ("2026-11-16T09:30:00Z", "laptop lost")
    assert current["created_at"] < former["created_at"] < former["retired_at"]
    raw = load_pem_public_key(former["public_key_pem"].encode()).public_bytes_raw()  # type: ignore[union-attr]
    assert hashlib.sha256(raw).hexdigest() == other.key_id


def test_the_current_key_is_listed_even_if_its_row_is_missing(settings: Settings, database: Database, api: Api) -> None:
    with database.writing() as session:
        session.execute(delete(SigningKey))
    (key,) = api.call(None, "GET", "/api/v1/log/keys").json()["keys"]
    assert key["keyid"] == configured_signer(settings).key_id
