"""A real HTTP server that receives callbacks and records them."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Received:
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Receiver:
    """Answers with `statuses` in order, then with 204. `while_answering` runs before each answer."""

    port: int
    statuses: list[int] = field(default_factory=list)
    answer_headers: dict[str, str] = field(default_factory=dict)
    while_answering: Callable[[], object] = lambda: None
    received: list[Received] = field(default_factory=list)

    def url(self, path: str = "/hook", host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # senders connect concurrently

    def handle_error(self, *_: object) -> None:
        """Ignore callers that refuse our certificate."""


@contextmanager
def run_receiver(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.received.append(Received(self.path, dict(self.headers), body))
            receiver.while_answering()
            self.send_response(receiver.statuses.pop(0) if receiver.statuses else 204)
            for name, value in receiver.answer_headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    receiver = Receiver(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
