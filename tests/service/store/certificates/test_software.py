from __future__ import annotations

import os
import subprocess

from service.store.certificates.software import software
from tests.deployments import ROOT

COMMAND = "find lethe migrations ml service vocabulary worker -name '*.py' | sort | xargs sha256sum | sha256sum"


def test_the_digest_is_what_anybody_can_compute_from_the_sources() -> None:
    env = {**os.environ, "LC_ALL": "C"}
    completed = subprocess.run(["sh", "-c", COMMAND], cwd=ROOT, env=env, text=True, capture_output=True, check=True)
    assert software().sources_sha256 == completed.stdout.split()[0]
    assert software().version
