"""Sources of the signing key outside the environment: a file or a command.

Nothing read here appears in messages, not even in errors: a damaged key still reveals most of the key.
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
GROUP_AND_OTHERS = 0o077


class KeyUnavailable(Exception):
    """The signing key cannot be read. The message reveals neither the key nor the command."""


def read_key_file(path: Path) -> str:
    """Read the key from a file. Raise KeyUnavailable if others can read or write it."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read()
    except OSError as error:
        raise KeyUnavailable(
            f"{FILE} cannot be read ({error.strerror}: {path}): make the user who runs Lethe the file's owner."
        ) from None
    if mode & GROUP_AND_OTHERS:
        raise KeyUnavailable(
            f"{FILE} is accessible to other users ({path}): run `chmod 600 {path}`, and `lethe key rotate` if one of "
            "them may have read it."
        )
    return content.decode(errors="replace").strip()


def replace_key_file(path: Path, text: str) -> None:
    """Replace the key atomically: a concurrent reader gets either the old key or the new one."""
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
            f"the new key cannot be written ({error.strerror}: {target}): make the current user its folder's owner."
        ) from None
    finally:
        draft.unlink(missing_ok=True)


@functools.cache
def run_key_command(line: str) -> str:
    """Return the output of the command. Run once per process: a vault may count, charge or ask a person."""
    try:
        process = subprocess.run(  # noqa: S603 - the environment's owner chooses the command, and no shell parses it
            shlex.split(line),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise KeyUnavailable(_command_failed(f"took longer than {COMMAND_SECONDS:.0f} seconds")) from None
    except (OSError, ValueError):
        raise KeyUnavailable(_command_failed("cannot be run")) from None
    if process.returncode != 0:
        raise KeyUnavailable(_command_failed(f"ended with status {process.returncode}"))
    return process.stdout.decode(errors="replace").strip()


def _command_failed(problem: str) -> str:
    return f"{COMMAND} {problem}: run it by hand to see why. It must print the key and nothing else."
