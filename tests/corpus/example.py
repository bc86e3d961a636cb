"""The worked example of docs/reference/bundle-format.md. `python -m tests.corpus.example` writes its files."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from lethe.verify.bundle import pre_authentication_encoding
from service.store.log.merkle import leaf_hash, node_hash
from tests.bundles import POSTERIOR, SIGNER, key_list
from tests.corpus.drafts import certificate
from vocabulary.certificate import PAYLOAD_TYPE

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/bundle-format.md"
FOLDER = PAGE.parent / "bundle-example"
LATER_SIZE = 12


def write_files() -> Mapping[str, bytes]:
    """Return the files of the example by name."""
    draft = certificate()
    return {
        "certificate.json": draft.write(),
        "keys.json": key_list(),
        "later.json": draft.later(LATER_SIZE),
        "posterior": POSTERIOR,
    }


def intermediate_values() -> Mapping[str, str]:
    """Return what a verifier computes on the way, in the order of the page."""
    bundle = json.loads((FOLDER / "certificate.json").read_bytes())
    payload = base64.b64decode(bundle["envelope"]["payload"])
    encoding = pre_authentication_encoding(PAYLOAD_TYPE, payload)
    text, _, signature = bundle["log"]["checkpoint"].partition("\n\n")
    content = json.loads(payload)["predicate"]
    commitment = bytes.fromhex(content["forgotten"]["commitments"][0])
    leaf = leaf_hash(bundle["log"]["entry"].encode())
    siblings = [bytes.fromhex(sibling) for sibling in bundle["log"]["proof"]]
    first = node_hash(siblings[0], leaf)
    second = node_hash(first, siblings[1])
    third = node_hash(siblings[2], second)
    values = {
        "id of the statement key": SIGNER.key_id,
        "id of the log key": SIGNER.log_key_id,
        "bytes of the payload": str(len(payload)),
        "SHA-256 of the payload, which the entry names": hashlib.sha256(payload).hexdigest(),
        "bytes of PAE": str(len(encoding)),
        "SHA-256 of PAE": hashlib.sha256(encoding).hexdigest(),
        "leaf hash of the entry": leaf.hex(),
        "after the first sibling (node 5, last 8: sibling on the left)": first.hex(),
        "after the second (node 2, last 4: on the right)": second.hex(),
        "after the third (node 1, last 2: on the left)": third.hex(),
        "after the fourth (node 0, last 1: on the right): the root": node_hash(third, siblings[3]).hex(),
        "SHA-256 of the checkpoint's signed text": hashlib.sha256(f"{text}\n".encode()).hexdigest(),
        "key hash in the checkpoint's signature": base64.b64decode(signature.split()[2])[:4].hex(),
        "leaf hash of the first forgotten commitment": leaf_hash(commitment).hex(),
        "root of the data set before": content["dataset"]["before"]["root"],
        "root of the data set after": content["dataset"]["after"]["root"],
    }
    return {name: f"`{value}`" for name, value in values.items()}


def main() -> None:
    """Write the files, and print the table of the page."""
    FOLDER.mkdir(exist_ok=True)
    for name, content in write_files().items():
        (FOLDER / name).write_bytes(content)
    sys.stdout.writelines(f"| {name} | {value} |\n" for name, value in intermediate_values().items())


if __name__ == "__main__":
    main()
