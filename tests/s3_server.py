"""A real server that speaks S3: rclone over a folder, from its wheel."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import wait_until

KEY, SECRET = "test-key", "test-secret"
BUCKET = "lethe"


@dataclass(frozen=True)
class S3Server:
    endpoint: str
    folder: Path
    """Where the bucket's objects are, each in a file under its key."""

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to find the server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Serves until the block ends, on a port of its own choice."""
    (folder / "buckets" / BUCKET).mkdir(parents=True)
    log = folder / "log"
    # Tests change files behind its back, so it may keep no listing; at 0s it would read folders without end.
    options = ["--config", "", "--addr", "127.0.0.1:0", "--auth-key", f"{KEY},{SECRET}", "--dir-cache-time", "1ms"]
    with log.open("wb") as output:
        command = [Path(sys.executable).with_name("rclone"), "serve", "s3", *options, folder / "buckets"]
        process = subprocess.Popen(command, stderr=output)
    try:
        found = wait_until(lambda: re.search(r"http://127\.0\.0\.1:\d+", log.read_text()), "the S3 server listens")
        yield S3Server(found.group(), folder / "buckets" / BUCKET)
    finally:
        process.terminate()
        process.wait()
