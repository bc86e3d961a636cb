"""Typed access to members of untrusted JSON. A member of the wrong type rejects the file."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

HEX_HASH = re.compile(r"[0-9a-f]{64}")
CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
TIME = re.compile(rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}T{CLOCK}:[0-5][0-9](\.[0-9]{{1,6}})?(Z|[+-]{CLOCK})")
"""RFC 3339, with `T`, an offset and up to six decimals."""


class Rejected(Exception):
    """The bundle is not valid. The message says which check failed and why."""


def is_signed(key: Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True


def decode_base64(text: str, description: str) -> bytes:
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Rejected(f"the {description} is not base64") from None
    if base64.b64encode(content).decode() != text:
        raise Rejected(f"the {description} is not in canonical base64")
    return content


def object_at(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = parent.get(name)
    if not isinstance(value, dict):
        raise Rejected(f"{name} is missing")
    return value


def list_at(parent: Mapping[str, Any], name: str) -> Sequence[Any]:
    value = parent.get(name)
    if not isinstance(value, list):
        raise Rejected(f"{name} is missing")
    return value


def text_at(parent: Mapping[str, Any], name: str) -> str:
    value = parent.get(name)
    if not isinstance(value, str):
        raise Rejected(f"{name} is missing")
    return value


def texts_at(parent: Mapping[str, Any], name: str) -> Sequence[str]:
    """Return a list of texts, empty if the member is absent."""
    return [text_at({name: value}, name) for value in list_at(parent, name)] if name in parent else []


def number_at(parent: Mapping[str, Any], name: str) -> float:
    value = parent.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Rejected(f"{name} is not a number")
    return float(value)


def whole_at(parent: Any, name: str) -> int:
    value = parent.get(name) if isinstance(parent, dict) else None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        raise Rejected(f"{name} is not a whole number")
    return value


def time_at(parent: Mapping[str, Any], name: str) -> datetime:
    """Return a time in UTC."""
    text = text_at(parent, name)
    try:
        if TIME.fullmatch(text):
            return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise Rejected(f"{name} is not a time")


def digest_of(subject: Any) -> str:
    digest = subject.get("digest") if isinstance(subject, dict) else None
    value = digest.get("sha256") if isinstance(digest, dict) else None
    if not isinstance(value, str) or not HEX_HASH.fullmatch(value):
        raise Rejected("a subject of the statement has no SHA-256")
    return value


def hash_at(parent: Any, name: str) -> bytes:
    value = parent.get(name) if isinstance(parent, dict) else None
    if not isinstance(value, str) or not HEX_HASH.fullmatch(value):
        raise Rejected(f"{name} is not a SHA-256")
    return bytes.fromhex(value)


def hashes_at(parent: Mapping[str, Any], name: str) -> list[bytes]:
    return [hash_at({name: value}, name) for value in list_at(parent, name)]
