"""Where a signing key can be kept other than in the environment: in a file, or behind a command.

Nothing here says what it read, not even in an error: a damaged key is still most of a key.
"""

from __future__ import annotations

import functools
import os
import secrets
import shlex
import subprocess
from pathlib import Path

FILE, COMMAND = "LETHE_SIGNING_KEY_FILE", "LETHE_SIGNING_KEY_COMMAND"
COMMAND_SECONDS = 10.0
OTHERS_BITS = 0o077


class KeyUnavailable(Exception):
    """The message says what to do, and nothing of the key or of the command that fetches it."""


def read_key_file(path: Path) -> str:
    """The content of a file that nobody but its owner can read or write."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read()
    except OSError as error:
        raise KeyUnavailable(
            f"{FILE} cannot be read ({error.strerror}: {path}): let the user who runs Lethe own the file."
        ) from None
    if mode & OTHERS_BITS:
        raise KeyUnavailable(
            f"{FILE} is open to other users ({path}): run `chmod 600 {path}`, and `lethe key rotate` if one of them "
            "may have read it."
        )
    return content.decode(errors="replace").strip()


def replace_key_file(path: Path, text: str) -> None:
    """Put another key there in one step: who reads the file at that moment gets the old one or the new one, whole."""
    target = path.resolve()
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        draft.touch(mode=0o600, exist_ok=False)
        with draft.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except OSError as error:
        raise KeyUnavailable(
            f"the new key cannot be written ({error.strerror}: {target}): let the user who runs this own its folder."
        ) from None
    finally:
        draft.unlink(missing_ok=True)


@functools.cache
def run_key_command(line: str) -> str:
    """What the command prints. Run once in a process: a vault may count, charge or ask a person."""
    try:
        ended = subprocess.run(  # noqa: S603 - whoever sets the environment chooses the command; no shell reads it
            shlex.split(line),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise KeyUnavailable(_command_failed(f"took longer than {COMMAND_SECONDS:.0f} seconds")) from None
    except (OSError, ValueError):
        raise KeyUnavailable(_command_failed("cannot be run as it is written")) from None
    if ended.returncode != 0:
        raise KeyUnavailable(_command_failed(f"ended with status {ended.returncode}"))
    return ended.stdout.decode(errors="replace").strip()


def _command_failed(how: str) -> str:
    return f"{COMMAND} {how}: run it by hand to see why. It must print the key and nothing else."
