"""Connection of commands to the API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import typer

from lethe.client import Client, LetheError

RETRY_SECONDS = 2.0


@contextmanager
def connect(url: str, token: str | None, data_dir: Path, role: str) -> Iterator[Client]:
    """Yield a client with the given token, or with the one that `lethe up` left for the role.

    Errors of the service and of the connection become usage errors of one line.
    """
    try:
        with Client(url, token or _local_token(data_dir, role), patience=RETRY_SECONDS) as client:
            yield client
    except LetheError as error:
        raise typer.BadParameter(str(error)) from None
    except httpx.TransportError as error:
        raise typer.BadParameter(f"no answer from {url} ({type(error).__name__}): is `lethe up` running?") from None


def _local_token(data_dir: Path, role: str) -> str:
    path = data_dir / "tokens" / f"{role}.token"
    if not path.exists():
        raise typer.BadParameter(f"no token: set LETHE_TOKEN, or start `lethe up`, which creates {path}")
    return path.read_text().strip()
