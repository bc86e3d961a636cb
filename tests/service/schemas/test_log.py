from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from pydantic import TypeAdapter, ValidationError

from service.schemas.log import HASH, MAX_SIZE, Index, LeafHash, public_keys_out
from service.settings import Settings
from service.store.database import Database
from service.store.signing.keys import keys_for, open_signer


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_list_of_keys_begins_with_those_in_use(settings: Settings, database: Database) -> None:
    signer = open_signer(settings, database)
    with database.writing() as session:
        listed = public_keys_out(settings, keys_for(session, signer))
    assert (listed.origin, listed.witnesses) == (settings.origin, [])
    assert [(key.use, key.keyid) for key in listed.keys] == [("statements", signer.key_id), ("log", signer.log_key_id)]
    for key in listed.keys:
        assert (key.retired_at, key.revoked_at, key.algorithm) == (None, None, "ed25519")
        assert key.public_key_pem in signer.public_pem
        load_pem_public_key(key.public_key_pem.encode())


@pytest.mark.parametrize(
    ("field", "value"), [(Index, -1), (Index, MAX_SIZE), (LeafHash, HASH.upper()), (LeafHash, HASH[1:])]
)
def test_positions_and_hashes_are_limited(field: type, value: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(field).validate_python(value)
    assert TypeAdapter(LeafHash).validate_python(HASH) == HASH
