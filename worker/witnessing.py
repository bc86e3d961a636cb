"""Asking a witness to sign a checkpoint (C2SP tlog-witness): here is the proof that it continues what you saw last."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence

import httpx

from service.settings.witnesses import Witness
from service.store.log import checkpoints as notes

Prove = Callable[[int], Sequence[bytes]]
"""From a smaller size to the proof that the checkpoint continues that tree."""
LONGEST_SIZE = 20


class NotWitnessed(Exception):
    """The witness did not sign; the message says why and holds no part of its URL."""


def ask(client: httpx.Client, witness: Witness, note: str, prove: Prove, known: int) -> str:
    """The witness's signature lines of this checkpoint, verified. `known` is the size that it saw last, as we believe.

    If it saw another one it says which, and is asked once more from there.
    """
    answer = _post(client, witness, note, prove, known)
    if answer.status_code == 409:
        answer = _post(client, witness, note, prove, _size_in(answer))
    if answer.status_code != 200:
        raise NotWitnessed(f"the witness answered {answer.status_code}")
    return _verified(witness, note, answer.text)


def _post(client: httpx.Client, witness: Witness, note: str, prove: Prove, old: int) -> httpx.Response:
    if old > notes.parse(note).size:
        raise NotWitnessed("the witness has seen a larger tree already")
    proof = "".join(f"{base64.b64encode(step).decode()}\n" for step in prove(old))
    try:
        return client.post(f"{witness.url}/add-checkpoint", content=f"old {old}\n{proof}\n{note}".encode())
    except httpx.HTTPError as error:
        raise NotWitnessed(f"the witness could not be asked ({type(error).__name__})") from None


def _size_in(answer: httpx.Response) -> int:
    text = answer.text.strip()
    if not text.isdecimal() or len(text) > LONGEST_SIZE:
        raise NotWitnessed("the witness saw another tree and does not say of which size")
    return int(text)


def _verified(witness: Witness, note: str, lines: str) -> str:
    """Only what is its own and good: others that it passes on are not asked for."""
    text = notes.parse(note).text
    try:
        found = notes.parse_signatures(lines)
    except notes.NotANote:
        raise NotWitnessed("the witness answered with something else than signatures") from None
    own = [one for one in found if one.id == witness.id]
    if not own or not all(witness.signed(text, one.value) for one in own):
        raise NotWitnessed("the witness's signature is missing or wrong")
    return "".join(one.line for one in own)
