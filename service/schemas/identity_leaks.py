"""Identities in texts that are stored for ever, such as callback URLs and idempotency keys: as they are, or hashed."""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from urllib.parse import unquote, urlsplit

IN_URL = "contains an identity of this request, or a hash of one, and would be stored: use a URL without it"
IN_KEY = "contains an identity of this request, or a hash of one, and would be stored: use a random key such as a UUID"
HASHES = ("md5", "sha1", "sha256")
SHORT = 12
"""Shorter values count as whole words only: a random key contains some customer number by chance."""
_UUID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}")


def url_names(url: str, values: Iterable[str]) -> bool:
    """Whether the URL contains one of the identity values, after its host, or the hash of one anywhere."""
    text = _fold(unquote(url))
    parts = urlsplit(text)
    after_host = "\n".join([parts.username or "", parts.password or "", parts.path, parts.query, parts.fragment])
    return any(_contains(after_host, value) or _contains_hash(text, value) for value in values)


def key_names(key: str, values: Iterable[str]) -> bool:
    """Whether the key contains one of the identity values or the hash of one."""
    text = _fold(unquote(key))
    is_uuid = _UUID.fullmatch(text) is not None  # its groups look like customer numbers
    return any((not is_uuid and _contains(text, value)) or _contains_hash(text, value) for value in values)


def _contains(text: str, value: str) -> bool:
    folded = _fold(value)
    if len(folded) >= SHORT or not folded.isalnum():
        return bool(folded) and folded in text
    return re.search(rf"(?<![^\W_]){re.escape(folded)}(?![^\W_])", text) is not None


def _contains_hash(text: str, value: str) -> bool:
    plain, is_uuid = text.replace("-", ""), _UUID.fullmatch(text) is not None
    standard = text.replace("-", "+").replace("_", "/")  # the other alphabet of base64
    for digest in _digests(value):
        # A UUID made of a hash has its first 16 bytes, except for the digits of version and variant.
        if digest.hex() in plain or (is_uuid and _blank(plain) == _blank(digest.hex()[:32])):
            return True
        if base64.b64encode(digest).decode().rstrip("=").casefold() in standard:
            return True
    return False


def _digests(value: str) -> Iterator[bytes]:
    for spelling in {value, _fold(value)}:
        for name in HASHES:
            yield hashlib.new(name, spelling.encode(), usedforsecurity=False).digest()


def _blank(digits: str) -> str:
    return f"{digits[:12]}.{digits[13:16]}.{digits[17:]}"


def _fold(text: str) -> str:
    return unicodedata.normalize("NFC", text).strip().casefold()
