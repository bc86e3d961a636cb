from __future__ import annotations

import hashlib
from datetime import UTC, datetime

from cryptography.hazmat.primitives.serialization import load_pem_public_key
from pydantic import SecretStr

from service.settings import Settings, new_key
from service.store.database import Database
from service.store.signing import keys
from service.store.signing.keys import configured_signer
from service.store.states import SigningUse
from tests.service.conftest import Api


def test_anybody_gets_all_keys_the_current_first(settings: Settings, database: Database, api: Api) -> None:
    signer = configured_signer(settings)
    revoked_at = datetime(2026, 11, 16, 9, 30, tzinfo=UTC)
    other = configured_signer(settings.model_copy(update={"signing_key": SecretStr(new_key())}))
    with database.writing() as session:
        keys.rotate(session, signer.public_key, other.public_key, SigningUse.STATEMENTS, "ops")
        keys.retire(session, other.key_id, "ops")
        keys.revoke(session, other.key_id, revoked_at, "laptop lost", "ops")
    listed = api.call(None, "GET", "/api/v1/log/keys").json()
    assert listed["origin"] == "localhost/lethe"
    current, log, former = listed["keys"]
    assert [key["keyid"] for key in listed["keys"]] == [signer.key_id, signer.log_key_id, other.key_id]
    assert [key["use"] for key in listed["keys"]] == ["statements", "log", "statements"]
    assert current["public_key_pem"] + log["public_key_pem"] == signer.public_pem
    assert [current[name] for name in ("retired_at", "revoked_at", "reason")] == [None, None, None]
    assert (former["revoked_at"], former["reason"]) == ("2026-11-16T09:30:00Z", "laptop lost")
    assert current["created_at"] < former["created_at"] < former["retired_at"]
    raw = load_pem_public_key(former["public_key_pem"].encode()).public_bytes_raw()  # type: ignore[union-attr]
    assert hashlib.sha256(raw).hexdigest() == other.key_id
