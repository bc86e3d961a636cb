"""The command line of the verifier alone; `lethe verify` prints the same in colour."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .bundle import verify
from .reading import Rejected


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if it holds, 1 if it does not, 2 if a file cannot be read."""
    parser = argparse.ArgumentParser(
        prog="lethe-verify", description="Checks a receipt or certificate of Lethe, offline."
    )
    parser.add_argument("bundle", type=Path, help="the receipt or certificate (.json)")
    parser.add_argument("--key", type=Path, required=True, help="Lethe's list of keys (.json), or a public key (.pem)")
    parser.add_argument("--posterior", type=Path, help="the model file it speaks of, to check it too")
    parser.add_argument("--later", type=Path, help="proof of a later checkpoint (/api/v1/log/proof/consistency)")
    parser.add_argument("--witness", action="append", default=[], metavar="KEY", help="who must have cosigned")
    parser.add_argument("--json", action="store_true", help="for machines")
    given = parser.parse_args(arguments)
    try:
        posterior, later = (path.read_bytes() if path else None for path in (given.posterior, given.later))
        found = verify(given.bundle.read_bytes(), given.key.read_bytes(), posterior, later, given.witness)
    except OSError as error:
        return _tell(2, {"verified": False, "reason": f"cannot read {error.filename}: {error.strerror}"}, given.json)
    except Rejected as reason:
        return _tell(1, {"verified": False, "reason": str(reason)}, given.json)
    return _tell(0, found.facts(), given.json)


def _tell(code: int, facts: Mapping[str, Any], as_json: bool) -> int:
    lines = [f"ok  {check}" for check in facts.get("checks", [])]
    lines += [f"--  not proved: {sentence}" for sentence in facts.get("not_proved", [])]
    lines.append("verified" if facts["verified"] else f"rejected: {facts['reason']}")
    sys.stdout.write((json.dumps(facts) if as_json else "\n".join(lines)) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
