from __future__ import annotations

import base64
import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from service.settings import Settings
from service.settings.witnesses import parse_witnesses

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
TEXT = "lethe.example/log\n7\nXcnaeacGWamtVZy3Ad7ZoqudgjqtL0lgz+Nw7/RgQyg=\n"


def vkey(name: str = "witness.example/w1", kind: bytes = b"\x04") -> str:
    material = kind + KEY.public_key().public_bytes_raw()
    shown = hashlib.sha256(f"{name}\n".encode() + material).digest()[:4].hex()
    return f"{name}+{shown}+{base64.b64encode(material).decode()}"


def test_several_witnesses_are_parsed() -> None:
    first, second = parse_witnesses(f"{vkey()}@https://witness.example/, {vkey('w2')}@http://127.0.0.1:9000/path")
    assert (first.name, first.url) == ("witness.example/w1", "https://witness.example")
    assert (second.name, second.url) == ("w2", "http://127.0.0.1:9000/path")
    assert first.public_key == KEY.public_key().public_bytes_raw()
    assert first.id == f"witness.example/w1+{first.key_hash.hex()}"
    assert parse_witnesses("") == []


@pytest.mark.parametrize(
    "text",
    [
        "witness.example",
        vkey(),
        f"{vkey()}@ftp://witness.example",
        f"{vkey(kind=bytes([1]))}@https://witness.example",
        f"{vkey().replace('w1', 'w2')}@https://witness.example",
        f"{vkey()[:-4]}@https://witness.example",
        "name+00000000+?@https://witness.example",
    ],
)
def test_an_invalid_witness_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="witness"):
        Settings(_env_file=None, witnesses=text)  # type: ignore[call-arg]


def test_a_cosignature_is_over_the_time_and_the_text() -> None:
    (witness,) = parse_witnesses(f"{vkey()}@https://witness.example")
    time = 1_679_315_147
    signed = time.to_bytes(8, "big") + KEY.sign(f"cosignature/v1\ntime {time}\n{TEXT}".encode())
    assert witness.verifies(TEXT, signed)
    assert not witness.verifies(TEXT.replace("7\n", "8\n"), signed)
    assert not witness.verifies(TEXT, (time + 1).to_bytes(8, "big") + signed[8:])
    assert not witness.verifies(TEXT, b"")
    assert not witness.verifies(TEXT, KEY.sign(TEXT.encode()))
