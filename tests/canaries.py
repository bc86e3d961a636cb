"""Made-up identities, and a search for them in every encoding in which they might be stored."""

from __future__ import annotations

import base64
import hashlib
import json
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from urllib.parse import quote, quote_plus

import redis
from sqlalchemy import select

from service.store.database import Database
from service.store.tables import Base

CANARIES = {
    "email": "Kanarie.7f3a+nergens@vogel.example",
    "controller_customer_id": "+4915173920416588",
    "android_id": "Žofie Kanářková ß 雀7f3a",
    "roku_publisher_id": 'can"ary\\{7f3a}</s>&%',
}
CRASHING = "Ontploft.7f3a@vogel.example"
"""The tests make the service crash on this one, with the identity in the error message."""
DIGESTS = ("md5", "sha1", "sha256")
ENCODINGS: Mapping[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "URL-encoded": lambda value: quote(value, safe="").encode(),
    "URL-encoded path": lambda value: quote(value).encode(),
    "form-encoded": lambda value: quote_plus(value).encode(),
    "JSON": lambda value: json.dumps(value.decode())[1:-1].encode(),
    "JSON in UTF-8": lambda value: json.dumps(value.decode(), ensure_ascii=False)[1:-1].encode(),
    "JSON in JSON": lambda value: json.dumps(json.dumps(value.decode()))[3:-3].encode(),
    "JSON in JSON in UTF-8": lambda value: json.dumps(json.dumps(value.decode(), ensure_ascii=False))[3:-3].encode(),
    "Python": lambda value: repr(value.decode())[1:-1].encode(),
    "Python bytes": lambda value: repr(value)[2:-1].encode(),
    "hex": lambda value: value.hex().encode(),
    **{f"{name} in hex": lambda value, name=name: hashlib.new(name, value).hexdigest().encode() for name in DIGESTS},
}
"""Searched for without regard to case."""


def find_leaks(content: bytes) -> set[str]:
    """Return the kinds of the identities in the content, with their encodings."""
    folded = content.lower()
    leaks = {name for form, name in _folded_forms().items() if form in folded}
    return leaks | {name for form, name in _exact_forms().items() if form in content}


def base64_at(offset: int, value: bytes) -> bytes:
    """Return the base64 digits that depend only on the value, if it comes after `offset` (0, 1 or 2) other bytes."""
    encoded = base64.b64encode(bytes(offset) + value)
    return encoded[-(-8 * offset // 6) : 8 * (offset + len(value)) // 6]


def table_contents(database: Database) -> Iterator[tuple[str, bytes]]:
    """Yield every row of every table."""
    with database.engine.connect() as connection:
        for table in Base.metadata.sorted_tables:
            for row in connection.execute(select(table)):
                yield f"table {table.name}", b"\n".join(map(_as_bytes, row))


def redis_contents(client: redis.Redis) -> Iterator[tuple[str, bytes]]:
    """Yield every key with its value, read by its type: the output of DUMP may be compressed."""
    for key in client.scan_iter():
        read: Mapping[bytes, Callable[[], object]] = {
            b"string": lambda key=key: client.get(key),
            b"list": lambda key=key: client.lrange(key, 0, -1),
            b"set": lambda key=key: client.smembers(key),
            b"hash": lambda key=key: client.hgetall(key),
            b"zset": lambda key=key: client.zrange(key, 0, -1),
            b"none": lambda: b"",  # it expired in the meantime
        }
        yield f"redis {key!r}", key + b"\n" + b"\n".join(_flat(read[client.type(key)]()))


@cache
def _folded_forms() -> Mapping[bytes, str]:
    return {
        encode(value).lower(): f"{kind}, {name}" for kind, value in _spellings() for name, encode in ENCODINGS.items()
    }


@cache
def _exact_forms() -> Mapping[bytes, str]:
    forms = {}
    for kind, value in _spellings():
        for offset in range(3):
            digits = base64_at(offset, value)
            forms[digits] = forms[digits.translate(bytes.maketrans(b"+/", b"-_"))] = f"{kind}, base64"
        forms.update((hashlib.new(name, value).digest(), f"{kind}, {name}") for name in DIGESTS)
    return forms


def _spellings() -> Iterator[tuple[str, bytes]]:
    for kind, value in {**CANARIES, "crashing": CRASHING}.items():
        for text in {value, value.casefold(), *(unicodedata.normalize(form, value) for form in ("NFC", "NFD"))}:
            yield kind, text.encode()


def _as_bytes(cell: object) -> bytes:
    if isinstance(cell, bytes):
        return cell
    return (json.dumps(cell) if isinstance(cell, dict | list) else str(cell)).encode()


def _flat(value: object) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, dict):
        yield from (part for item in value.items() for part in item)
    elif isinstance(value, list | set):
        yield from value
