"""Requests for cosignatures, to a real witness over HTTP."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence

import httpx
import pytest

from service.settings import new_key
from service.settings.witnesses import Witness, parse_witnesses
from service.store.log.checkpoints import parse_note, write_checkpoint
from service.store.log.merkle import leaf_hash, node_hash
from service.store.signing.statements import StatementSigner
from tests import witness as witness_server
from worker.witness_client import NotWitnessed, request_cosignature

LEAVES = [leaf_hash(bytes([number])) for number in range(2)]
ROOTS = {1: LEAVES[0], 2: node_hash(*LEAVES)}
SIGNER = StatementSigner(*(base64.b64decode(new_key()) for _ in range(2)), "log.example")


@pytest.fixture
def server() -> Iterator[witness_server.Witness]:
    with witness_server.run_witness(SIGNER.log_public_key) as running:
        yield running


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=5) as opened:
        yield opened


def configured(server: witness_server.Witness) -> Witness:
    (witness,) = parse_witnesses(server.setting)
    return witness


def note(size: int) -> str:
    return write_checkpoint(SIGNER, size, ROOTS[size])


def prove(old_size: int) -> Sequence[bytes]:
    return [LEAVES[1]] if old_size == 1 else []


def test_the_returned_line_is_a_valid_cosignature(server: witness_server.Witness, client: httpx.Client) -> None:
    line = request_cosignature(client, configured(server), note(1), prove, 0)
    cosigned = parse_note(note(1) + line)
    assert cosigned.signatures[-1].name == server.name
    assert configured(server).verifies(cosigned.text, cosigned.signatures[-1].value)


def test_a_wrong_guess_at_the_last_size_is_corrected_once(server: witness_server.Witness, client: httpx.Client) -> None:
    request_cosignature(client, configured(server), note(1), prove, 0)
    assert request_cosignature(client, configured(server), note(2), prove, 0)
    assert server.answers == [200, 409, 200]


@pytest.mark.parametrize(
    ("statuses", "message"),
    [([500], "the witness answered 500"), ([409], "without the size"), ([200], "missing or invalid")],
)
def test_other_answers_are_errors(
    server: witness_server.Witness, client: httpx.Client, statuses: list[int], message: str
) -> None:
    server.statuses = statuses
    with pytest.raises(NotWitnessed, match=message):
        request_cosignature(client, configured(server), note(1), prove, 0)


def test_a_signature_of_another_text_is_refused(server: witness_server.Witness, client: httpx.Client) -> None:
    server.signs_other_text = True
    with pytest.raises(NotWitnessed, match="missing or invalid"):
        request_cosignature(client, configured(server), note(1), prove, 0)


def test_a_witness_ahead_of_us_is_not_asked_to_go_back(server: witness_server.Witness, client: httpx.Client) -> None:
    request_cosignature(client, configured(server), note(2), prove, 0)
    with pytest.raises(NotWitnessed, match="already signed a larger tree"):
        request_cosignature(client, configured(server), note(1), prove, 0)


def test_errors_do_not_contain_the_url(client: httpx.Client, server: witness_server.Witness) -> None:
    unreachable = parse_witnesses(server.setting.replace(f":{server.port}", ":1"))[0]
    with pytest.raises(NotWitnessed, match=r"^the request to the witness failed \(ConnectError\)$"):
        request_cosignature(client, unreachable, note(1), prove, 0)
