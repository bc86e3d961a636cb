"""A real S3 server: rclone, from its wheel, over a folder."""

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
    """Folder of the bucket: each object is a file with its key as the path."""

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that point a process to the server."""
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
    """Serve on a free port until the block ends."""
    (folder / "buckets" / BUCKET).mkdir(parents=True)
    log = folder / "log"
    # Tests change files directly, so it must not cache listings; with 0s it would read folders endlessly.
    options = ["--config", "", "--addr", "127.0.0.1:0", "--auth-key", f"{KEY},{SECRET}", "--dir-cache-time", "1ms"]
    with log.open("wb") as output:
        command = [Path(sys.executable).with_name("rclone"), "serve", "s3", *options, folder / "buckets"]
        process = subprocess.Popen(command, stderr=output)
    try:
        address = wait_until(lambda: re.search(r"http://127\.0\.0\.1:\d+", log.read_text()), "the S3 server listens")
        yield S3Server(address.group(), folder / "buckets" / BUCKET)
    finally:
        process.terminate()
        process.wait()
