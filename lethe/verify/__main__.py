"""Command line of the stand-alone verifier; `lethe verify` prints the same in colour."""

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
    """Return 0 if the file is valid, 1 if it is rejected, 2 if a file cannot be read."""
    parser = argparse.ArgumentParser(prog="lethe-verify", description="Verify a receipt or certificate offline.")
    parser.add_argument("bundle", type=Path, help="receipt or certificate (.json)")
    parser.add_argument("--key", type=Path, required=True, help="list of keys (.json) or public key (.pem)")
    parser.add_argument("--posterior", type=Path, help="model file to compare with the certificate")
    parser.add_argument(
        "--later", type=Path, help="consistency proof to a later checkpoint (/api/v1/log/proof/consistency)"
    )
    parser.add_argument(
        "--witness", action="append", default=[], metavar="KEY", help="key of a witness that must have cosigned"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    try:
        posterior, later = (path.read_bytes() if path else None for path in (options.posterior, options.later))
        verified = verify(options.bundle.read_bytes(), options.key.read_bytes(), posterior, later, options.witness)
    except OSError as error:
        return _report(
            2, {"verified": False, "reason": f"cannot read {error.filename}: {error.strerror}"}, options.json
        )
    except Rejected as reason:
        return _report(1, {"verified": False, "reason": str(reason)}, options.json)
    return _report(0, verified.facts(), options.json)


def _report(code: int, facts: Mapping[str, Any], as_json: bool) -> int:
    lines = [f"ok  {check}" for check in facts.get("checks", [])]
    lines += [f"--  not proved: {sentence}" for sentence in facts.get("not_proved", [])]
    lines.append("verified" if facts["verified"] else f"rejected: {facts['reason']}")
    sys.stdout.write((json.dumps(facts) if as_json else "\n".join(lines)) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
