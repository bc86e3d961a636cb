"""Sources of private keys: the environment, a file or a command.

Nothing read here appears in messages, not even in errors: a damaged key still reveals most of the key.
"""

from __future__ import annotations

import functools
import os
import secrets
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

COMMAND_SECONDS = 10.0
GROUP_AND_OTHERS = 0o077


class KeyUnavailable(Exception):
    """A key cannot be read. The message reveals neither the key nor the command."""


@dataclass(frozen=True)
class KeySource:
    """Source of one private key. `name` is the variable of the key itself; its file and command have longer names."""

    name: str
    text: SecretStr | None
    file: Path | None
    command: SecretStr | None

    @property
    def variables(self) -> Sequence[str]:
        """Names of the variables that are set."""
        given = {self.name: self.text, f"{self.name}_FILE": self.file, f"{self.name}_COMMAND": self.command}
        return [name for name, value in given.items() if value]

    @property
    def variable(self) -> str:
        """Name of the variable that supplies the key, or should."""
        return (*self.variables, self.name)[0]

    def read(self) -> SecretStr | None:
        """Return the key as base64, or None if none is configured. Raises KeyUnavailable."""
        if self.file:
            return SecretStr(read_key_file(self.file, self.variable))
        if self.command:
            return SecretStr(run_key_command(self.command.get_secret_value(), self.variable))
        return self.text


def read_key_file(path: Path, variable: str) -> str:
    """Read the key from a file. Raise KeyUnavailable if others can read or write it."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read()
    except OSError as error:
        raise KeyUnavailable(
            f"{variable} cannot be read ({error.strerror}: {path}): make the user who runs Lethe the file's owner."
        ) from None
    if mode & GROUP_AND_OTHERS:
        raise KeyUnavailable(
            f"{variable} is accessible to other users ({path}): run `chmod 600 {path}`, and `lethe key rotate` if one "
            "of them may have read it."
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
def run_key_command(line: str, variable: str) -> str:
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
        raise KeyUnavailable(_command_failed(variable, f"took longer than {COMMAND_SECONDS:.0f} seconds")) from None
    except (OSError, ValueError):
        raise KeyUnavailable(_command_failed(variable, "cannot be run")) from None
    if process.returncode != 0:
        raise KeyUnavailable(_command_failed(variable, f"ended with status {process.returncode}"))
    return process.stdout.decode(errors="replace").strip()


def _command_failed(variable: str, problem: str) -> str:
    return f"{variable} {problem}: run it by hand to see why. It must print the key and nothing else."
