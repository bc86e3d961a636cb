"""Client for witnesses that cosign checkpoints of the log (C2SP tlog-witness)."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence

import httpx

from service.settings.witnesses import Witness
from service.store.log.checkpoints import InvalidNote, parse_note, parse_signatures

Prove = Callable[[int], Sequence[bytes]]
"""Return the consistency proof from the tree of the given size to the checkpoint."""
MAX_SIZE_DIGITS = 20


class NotWitnessed(Exception):
    """The witness did not sign; the message says why and holds no part of its URL."""


def request_cosignature(client: httpx.Client, witness: Witness, note: str, prove: Prove, last_size: int) -> str:
    """Return the witness's verified signature lines of the checkpoint.

    `last_size` is our guess at the size that the witness signed last. A witness that signed another one answers 409
    with its size; the request is then repeated once from there.
    """
    response = _post(client, witness, note, prove, last_size)
    if response.status_code == 409:
        response = _post(client, witness, note, prove, _parse_size(response))
    if response.status_code != 200:
        raise NotWitnessed(f"the witness answered {response.status_code}")
    return _verify_lines(witness, note, response.text)


def _post(client: httpx.Client, witness: Witness, note: str, prove: Prove, old_size: int) -> httpx.Response:
    if old_size > parse_note(note).size:
        raise NotWitnessed("the witness has already signed a larger tree")
    proof = "".join(f"{base64.b64encode(step).decode()}\n" for step in prove(old_size))
    try:
        return client.post(f"{witness.url}/add-checkpoint", content=f"old {old_size}\n{proof}\n{note}".encode())
    except httpx.HTTPError as error:
        raise NotWitnessed(f"the request to the witness failed ({type(error).__name__})") from None


def _parse_size(response: httpx.Response) -> int:
    text = response.text.strip()
    if not text.isdecimal() or len(text) > MAX_SIZE_DIGITS:
        raise NotWitnessed("the witness reported a conflict without the size of its tree")
    return int(text)


def _verify_lines(witness: Witness, note: str, lines: str) -> str:
    """Return the witness's own signature lines, verified; lines of other signers are dropped."""
    text = parse_note(note).text
    try:
        signatures = parse_signatures(lines)
    except InvalidNote:
        raise NotWitnessed("the witness's response holds no signature lines") from None
    own = [signature for signature in signatures if signature.id == witness.id]
    if not own or not all(witness.verifies(text, signature.value) for signature in own):
        raise NotWitnessed("the witness's signature is missing or invalid")
    return "".join(signature.line for signature in own)
