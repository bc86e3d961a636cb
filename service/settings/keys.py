"""Private keys as text: creation, decoding, and files that only their owner can read."""

from __future__ import annotations

import base64
import binascii
import contextlib
import secrets
from collections.abc import Sequence
from pathlib import Path

from pydantic import SecretStr

from service.settings.key_sources import KeySource, KeyUnavailable

KEY_BYTES = 32
REMEDY = "run `lethe secrets` to create one and store it with your other secrets."


class ConfigurationError(Exception):
    """Configuration with which Lethe cannot start. The message names the variable and the remedy."""


def new_key() -> str:
    """Return a new secret for LETHE_IDENTITY_KEY, LETHE_SIGNING_KEY or LETHE_LOG_KEY."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def make_private_folder(path: Path) -> None:
    """Create a folder that only its owner can enter, and parents that are missing likewise."""
    for folder in reversed((path, *path.parents)):
        folder.mkdir(exist_ok=True, mode=0o700)


def write_private_file(path: Path, text: str) -> None:
    """Create a file that only its owner can read. Raise FileExistsError instead of overwriting.

    The complete file is linked into place, so that a process starting at the same time never reads half a key.
    """
    make_private_folder(path.parent)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    draft.touch(mode=0o600, exist_ok=False)
    try:
        draft.write_text(text)
        path.hardlink_to(draft)
    finally:
        draft.unlink()


def ensure_key_file(path: Path) -> Path:
    """Create the file with a new key unless it exists, and return its path."""
    with contextlib.suppress(FileExistsError):
        write_private_file(path, new_key())
    return path


def require_one(source: KeySource) -> KeySource:
    """Return the source. Two variables could supply two keys and are an error."""
    if len(source.variables) > 1:
        variables = " and ".join(source.variables)
        raise ConfigurationError(f"{variables} are set: keep the one that supplies the key in use.")
    return source


def read_key(source: KeySource) -> bytes:
    """Return the key of a source. Raises ConfigurationError if there is none, or if it is damaged."""
    return _decode_key(source.variable, _read_text(source))


def read_key_list(source: KeySource) -> Sequence[bytes]:
    """Return the keys of a source that lists them, separated by commas. Raises ConfigurationError."""
    text = _read_text(source)
    parts = text.get_secret_value().split(",") if text else [""]
    return [_decode_key(source.variable, SecretStr(part.strip())) for part in parts]


def _read_text(source: KeySource) -> SecretStr | None:
    try:
        return source.read()
    except KeyUnavailable as error:
        raise ConfigurationError(str(error)) from None


def _decode_key(variable: str, value: SecretStr | None) -> bytes:
    if value is None or not value.get_secret_value().strip():
        raise ConfigurationError(f"{variable} is not set: {REMEDY}")
    try:
        key = base64.b64decode(value.get_secret_value(), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES or len(set(key)) < 8:
        raise ConfigurationError(
            f"{variable} is a placeholder or damaged (it must be the base64 of {KEY_BYTES} random bytes): {REMEDY}"
        )
    return key
