"""A real witness over HTTP (C2SP tlog-witness): it keeps the last checkpoint and cosigns those that extend it."""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from service.store.log.checkpoints import Note, parse_note
from service.store.log.merkle import node_hash


def roots(old: int, new: int, old_root: bytes, proof: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return both roots that a consistency proof leads to (RFC 9162, 2.1.4.2)."""
    steps = [old_root, *proof] if old & (old - 1) == 0 else list(proof)
    first, last = old - 1, new - 1
    while first % 2:
        first, last = first >> 1, last >> 1
    before = after = steps[0]
    for step in steps[1:]:
        if first % 2 or first == last:
            before, after = node_hash(step, before), node_hash(step, after)
            while first % 2 == 0 and first:
                first, last = first >> 1, last >> 1
        else:
            after = node_hash(after, step)
        first, last = first >> 1, last >> 1
    return (before, after) if last == 0 else (b"", b"")


@dataclass
class Witness:
    """Also accepts PUT, like an archive of checkpoints. The first requests are answered with `statuses`."""

    port: int
    log_key: bytes
    key: Ed25519PrivateKey = field(default_factory=lambda: Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
    name: str = "witness.example/w1"
    last_note: Note | None = None
    statuses: list[int] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    """Statuses of its answers so far."""
    stored: list[str] = field(default_factory=list)
    signs_other_text: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def setting(self) -> str:
        material = b"\x04" + self.key.public_key().public_bytes_raw()
        return f"{self.name}+{self._hash().hex()}+{base64.b64encode(material).decode()}@{self.url}"

    def add(self, body: str) -> tuple[int, str]:
        head, _, note_text = body.partition("\n\n")
        old_line, *proof = head.split("\n")
        note, old = parse_note(note_text), int(old_line.removeprefix("old "))
        Ed25519PublicKey.from_public_bytes(self.log_key).verify(note.signatures[0].value, note.text.encode())
        last_size = self.last_note.size if self.last_note else 0
        if old != last_size:
            return 409, f"{last_size}\n"
        if self.last_note and note.size > old:
            steps = [base64.b64decode(step) for step in proof]
            if roots(old, note.size, self.last_note.root, steps) != (self.last_note.root, note.root):
                return 422, "no such log\n"
        elif proof or (self.last_note and self.last_note.root != note.root):
            return 409, f"{last_size}\n"
        self.last_note = note
        return 200, self._cosignature(note)

    def _cosignature(self, note: Note) -> str:
        timestamp = int(time.time())
        text = note.text.replace("\n", "\n\n") if self.signs_other_text else note.text
        signed = timestamp.to_bytes(8, "big") + self.key.sign(f"cosignature/v1\ntime {timestamp}\n{text}".encode())
        return f"— {self.name} {base64.b64encode(self._hash() + signed).decode()}\n"

    def _hash(self) -> bytes:
        material = b"\x04" + self.key.public_key().public_bytes_raw()
        return hashlib.sha256(f"{self.name}\n".encode() + material).digest()[:4]


@contextmanager
def run_witness(log_key: bytes) -> Iterator[Witness]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self._body()
            status, text = (witness.statuses.pop(0), "") if witness.statuses else witness.add(body)
            assert self.path == "/add-checkpoint"
            witness.answers.append(status)
            self._answer(status, text)

        def do_PUT(self) -> None:
            body = self._body()
            status = witness.statuses.pop(0) if witness.statuses else 204
            if status == 204:
                witness.stored.append(body)
            self._answer(status, "")

        def _body(self) -> str:
            return self.rfile.read(int(self.headers["Content-Length"])).decode()

        def _answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    witness = Witness(server.server_address[1], log_key)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield witness
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
