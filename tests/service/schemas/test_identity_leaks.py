from __future__ import annotations

import base64
import hashlib
import uuid

import pytest

from service.schemas.identity_leaks import key_names, url_names

ADA = "Ada@Example.org"
FOLDED = b"ada@example.org"
SHA256 = hashlib.sha256(FOLDED).digest()
TEXTS = [
    "ada@example.org",
    "delete-ADA@example.org-1",
    "ada%40example.org",
    hashlib.md5(FOLDED).hexdigest(),
    f"key-{hashlib.sha1(FOLDED).hexdigest().upper()}",
    SHA256.hex(),
    base64.b64encode(SHA256).decode(),
    base64.urlsafe_b64encode(SHA256).decode().rstrip("="),
    hashlib.sha256(ADA.encode()).hexdigest(),
]


@pytest.mark.parametrize("text", [*TEXTS, str(uuid.UUID(hashlib.md5(FOLDED).hexdigest(), version=4))])
def test_a_key_made_of_an_identity_is_recognised(text: str) -> None:
    assert key_names(text, ["someone else", ADA])
    assert not key_names(text, ["bob@example.org"])


@pytest.mark.parametrize("text", TEXTS)
def test_a_url_made_of_an_identity_is_recognised(text: str) -> None:
    assert url_names(f"https://acme.example/hooks/{text}", [ADA])
    assert url_names(f"https://acme.example/hooks?person={text}", [ADA])
    assert not url_names(f"https://acme.example/hooks/{text}", ["bob@example.org"])


def test_customer_numbers_count_as_whole_words() -> None:
    for text in ("customer-4711", "4711", "a_4711_b"):
        assert key_names(text, ["4711"]), text
    for text in ("b47110", "84711f", "0b1c4711-9d2a-4c47-8e1b-2f3a4b5c6d7e", "0b1c3f5e-4711-4c47-8e1b-2f3a4b5c6d7e"):
        assert not key_names(text, ["4711"]), text
    assert url_names("https://acme.example/customers/4711", ["4711"])
    assert not url_names("https://acme.example:4711/customers", ["4711"])
    assert not url_names("https://acme.example/hooks", ["acme"])


def test_random_keys_are_free_of_identities() -> None:
    values = [ADA, *map(str, range(1_000, 1_200))]
    assert not any(key_names(str(uuid.UUID(int=number, version=4)), values) for number in range(50))
