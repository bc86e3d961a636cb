"""Command line of the stand-alone verifier; `lethe verify` prints the same in colour."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from .files import printable, verify_files, write_ending


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if verified, 1 if rejected, 2 if a file cannot be read, 3 if evidence is missing."""
    options = _parse(arguments)
    code, facts = verify_files(
        options.bundle, options.key, options.posterior, options.later, options.witness, options.origin
    )
    lines = [f"ok  {printable(check)}" for check in facts.get("checks", [])]
    lines += [f"--  not proved: {printable(sentence)}" for sentence in facts.get("not_proved", [])]
    lines.append("".join(write_ending(code, facts)))
    text = json.dumps(facts) if options.json else "\n".join(lines)
    sys.stdout.buffer.write(f"{text}\n".encode())
    return code


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="lethe-verify",
        description="Verify a receipt or certificate offline.",
        epilog="exit codes: 0 verified, 1 rejected, 2 a file cannot be read, 3 not verified yet: evidence is missing",
    )
    parser.add_argument("bundle", type=Path, help="receipt or certificate (.json)")
    parser.add_argument("--key", type=Path, required=True, help="list of keys (.json) or public key (.pem)")
    parser.add_argument("--posterior", type=Path, help="model file to compare with the certificate")
    parser.add_argument(
        "--later", type=Path, help="consistency proof to a later checkpoint (/api/v1/log/proof/consistency)"
    )
    parser.add_argument(
        "--witness", action="append", default=[], metavar="KEY", help="key of a witness that must have cosigned"
    )
    parser.add_argument("--origin", metavar="NAME", help="name of the log, which a public key alone does not tell")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
