"""Delivery of callbacks over real sockets: what the client sends and what it refuses."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from service.settings.callback_targets import NOT_ENCRYPTED, NOT_PUBLIC, AllowedTargets
from service.store.signing.processor_identity import _self_signed
from tests.receiver import run_receiver
from worker.callbacks.delivery import CallbackClient, NotDelivered, TargetForbidden
from worker.callbacks.message import Message

LOOPBACK = AllowedTargets.parse("127.0.0.0/8")


class Resolver:
    """A resolver that returns the next answer at each call."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.calls.append((host, port))
        return self.answers.pop(0)


def deliver(
    url: str,
    targets: AllowedTargets = LOOPBACK,
    resolver: Resolver | None = None,
    tls: ssl.SSLContext | None = None,
    timeout_seconds: float = 5.0,
) -> None:
    options = {} if resolver is None else {"resolve": resolver}
    client = CallbackClient(targets, timeout_seconds, tls or ssl.create_default_context(), **options)
    asyncio.run(client.deliver(Message(url, b"{}", {"Content-Type": "application/json"})))


def test_the_receiver_gets_path_body_and_headers() -> None:
    with run_receiver() as receiver:
        deliver(receiver.url("/hook?key=a%20b"))
    (received,) = receiver.received
    assert (received.path, received.body) == ("/hook?key=a%20b", b"{}")
    assert received.headers["Content-Type"] == "application/json"
    assert received.headers["Host"] == f"127.0.0.1:{receiver.port}"
    assert received.headers["User-Agent"].startswith("lethe/")


def test_the_name_is_resolved_once_per_attempt() -> None:
    """DNS rebinding gains nothing: the connection goes to the address that was checked."""
    resolver = Resolver(["127.0.0.1"], ["169.254.169.254"])
    with run_receiver() as receiver:
        deliver(receiver.url(host="hooks.example"), resolver=resolver)
        assert resolver.calls == [("hooks.example", receiver.port)]
        assert receiver.received[0].headers["Host"] == f"hooks.example:{receiver.port}"
        with pytest.raises(TargetForbidden, match="only for targets"):  # checked again at each attempt
            deliver(receiver.url(host="hooks.example"), resolver=resolver)
    assert len(receiver.received) == 1


@pytest.mark.parametrize(
    ("scheme", "targets", "reason"),
    [("https", AllowedTargets(), NOT_PUBLIC), ("http", AllowedTargets(), NOT_ENCRYPTED)],
)
def test_only_public_https_targets_are_called(scheme: str, targets: AllowedTargets, reason: str) -> None:
    with run_receiver() as receiver, pytest.raises(TargetForbidden) as refused:
        deliver(receiver.url(scheme=scheme), targets)
    assert str(refused.value) == reason
    assert receiver.received == []


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1", "localhost"])
def test_other_spellings_of_an_address_are_resolved_first(host: str) -> None:
    with run_receiver() as receiver, pytest.raises(TargetForbidden):
        deliver(receiver.url(host=host, scheme="https"), AllowedTargets())
    assert receiver.received == []


def test_proxies_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_receiver() as receiver, run_receiver() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url(""))
        deliver(receiver.url())
    assert (len(receiver.received), proxy.received) == (1, [])


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(status: int) -> None:
    with run_receiver() as receiver, run_receiver() as elsewhere:
        receiver.statuses, receiver.answer_headers = [status], {"Location": elsewhere.url()}
        with pytest.raises(NotDelivered, match=f"answered {status}"):
            deliver(receiver.url())
    assert (len(receiver.received), elsewhere.received) == (1, [])


@pytest.fixture(scope="module")
def key_and_certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Key and certificate of hooks.example."""
    folder = tmp_path_factory.mktemp("tls")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
    (folder / "certificate.pem").write_text(_self_signed("hooks.example", key))
    return folder / "key.pem", folder / "certificate.pem"


@pytest.mark.parametrize(
    ("host", "trusted"), [("hooks.example", True), ("other.example", True), ("hooks.example", False)]
)
def test_the_certificate_is_checked_for_the_name(
    key_and_certificate: tuple[Path, Path], host: str, trusted: bool
) -> None:
    key, certificate = key_and_certificate
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(certificate, key)
    client_tls = ssl.create_default_context(cafile=certificate) if trusted else ssl.create_default_context()
    is_valid = trusted and host == "hooks.example"
    with run_receiver(server_tls) as receiver:
        if is_valid:
            deliver(receiver.url(host=host, scheme="https"), resolver=Resolver(["127.0.0.1"]), tls=client_tls)
        else:
            with pytest.raises(NotDelivered, match="certificate must be valid"):
                deliver(receiver.url(host=host, scheme="https"), resolver=Resolver(["127.0.0.1"]), tls=client_tls)
    assert len(receiver.received) == int(is_valid)


@contextmanager
def run_server(talk: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """Run a server that reads a request and then calls `talk`, until the test is over."""
    listener, stop = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            with suppress(OSError):  # the client closes the connection
                talk(connection, stop)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        stop.set()
        thread.join()
        listener.close()


def test_a_response_that_never_ends_is_cut_off() -> None:
    def drip(connection: socket.socket, stop: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        while not stop.wait(0.05):
            connection.sendall(b"x")

    started = time.monotonic()
    with run_server(drip) as url, pytest.raises(NotDelivered, match=r"within 0\.4 seconds"):
        deliver(url, timeout_seconds=0.4)
    assert time.monotonic() - started < 5


def test_the_body_of_the_response_is_not_read() -> None:
    def send_headers_only(connection: socket.socket, stop: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n")
        stop.wait(20)

    started = time.monotonic()
    with run_server(send_headers_only) as url:
        deliver(url, timeout_seconds=20)
    assert time.monotonic() - started < 10


def test_an_unreachable_receiver_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(NotDelivered, match="could not be reached"):
        deliver(f"http://127.0.0.1:{port}/")


def test_an_unknown_host_name_is_reported() -> None:
    async def unknown(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    client = CallbackClient(LOOPBACK, 5, ssl.create_default_context(), unknown)
    with pytest.raises(NotDelivered, match="could not be resolved"):
        asyncio.run(client.deliver(Message("https://nowhere.example/", b"{}", {})))
