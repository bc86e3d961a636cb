"""An insider who has everything that Lethe stores, and every secret, and guesses who was erased.

A guess is confirmed if any value that Lethe could have derived from the person stands in the loot: keyed and plain
hashes of the identity in its spellings, of request bodies and of their digests, under every key there is.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from service.intake.parsing import RequestParser
from service.schemas.deletions import DeletionCreate
from service.store.access.identities import Identity, IdentityHasher
from service.store.access.tokens import Caller
from service.store.deletions.bodies import digest_content
from service.store.states import Role

HASHES = ("md5", "sha1", "sha256")
PREFIX = 8
FORMS: Mapping[str, tuple[Callable[[bytes], bytes], int]] = {
    "raw": (bytes, 8),
    "hex": (lambda value: value.hex().encode(), 4),
    "base64": (lambda value: base64.b64encode(value).rstrip(b"="), 6),
}
"""Forms in which a value may be stored, with the number of its bytes that make the first eight."""
_HEX = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
SHORTEST = 16
"""Bytes of the shortest value that cannot be in the loot by chance."""


class Loot:
    """Everything that was taken, searched for many values at once."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        ends = [start + (len(content) - start) // PREFIX * PREFIX for start in range(PREFIX)]
        windows = [np.frombuffer(content[start:end], "<u8") for start, end in enumerate(ends)]
        self._windows = np.unique(np.concatenate(windows))

    def find(self, values: Iterable[bytes]) -> set[bytes]:
        """Return those of the values that the loot contains, as bytes, as hex or in base64."""
        listed = list(values)
        return {value for encode, length in FORMS.values() for value in self._find(listed, encode, length)}

    def _find(self, values: Sequence[bytes], encode: Callable[[bytes], bytes], length: int) -> Iterator[bytes]:
        """Yield the values whose encoded form is there. `length` bytes of a value are PREFIX bytes of its form."""
        prefixes = np.frombuffer(b"".join(encode(value[:length]) for value in values), "<u8")
        places = np.searchsorted(self._windows, prefixes).clip(max=len(self._windows) - 1)
        candidates = np.flatnonzero(self._windows[places] == prefixes)
        yield from (values[index] for index in candidates if encode(values[index]) in self.content)


@dataclass(frozen=True)
class Insider:
    loot: Loot
    secrets: Sequence[bytes]
    """Every secret of the service and its callers, except random idempotency keys, which are only with the callers."""
    identity_keys: Sequence[bytes]
    deletion_ids: Sequence[uuid.UUID]
    bodies: Sequence[str]
    """Bodies as callers send them, with `PERSON` in place of the person."""

    def confirm(self, person: str) -> set[bytes]:
        """Return the values in the loot that confirm that Lethe dealt with this person."""
        return self.loot.find(set(self._derive(person)))

    @cached_property
    def _keys(self) -> Sequence[bytes]:
        """Every secret, and everything in the loot that could be a key."""
        stolen = {bytes.fromhex(match.decode()) for match in _HEX.findall(self.loot.content)}
        return [*self.secrets, *(stolen - set(self.secrets))]

    @cached_property
    def _hashers(self) -> Sequence[IdentityHasher]:
        """Hashers with the identity keys in use at any time, and with each key alone."""
        chains = [self.identity_keys[:count] for count in range(1, len(self.identity_keys) + 1)]
        return [IdentityHasher(*keys) for keys in (*chains, *([key] for key in self.identity_keys[1:]))]

    def _derive(self, person: str) -> Iterator[bytes]:
        messages = [*self._texts(person)]
        messages += [hashlib.new(name, text, usedforsecurity=False).digest() for text in messages for name in HASHES]
        yield from (message for message in messages if len(message) >= SHORTEST)
        yield from (hasher.mac(message) for hasher in self._hashers for message in messages)
        for key, message in itertools.product(self._keys, messages):
            mac = hmac.digest(key, message, "sha256")
            yield mac
            yield from (hasher.mac(mac) for hasher in self._hashers)
        lookups = [hasher.lookup(Identity("email", person)) for hasher in self._hashers]
        for key, lookup in itertools.product(self._keys, lookups):
            yield hmac.digest(key, lookup, "sha256")
            yield from (hmac.digest(key, lookup + item.bytes, "sha256") for item in self.deletion_ids)

    def _texts(self, person: str) -> Iterator[bytes]:
        """Yield what may have been hashed: the identity in its spellings, bodies, and digests of their content."""
        yield person.encode()
        yield Identity("email", person).canonical.encode()
        for body in self.bodies:
            text = body.replace("PERSON", person)
            yield text.encode()
            yield from _canonical_texts(text)


def _canonical_texts(text: str) -> Iterator[bytes]:
    """Yield a native body as Lethe used to write it, and the digests by which it compares bodies now."""
    try:
        body = DeletionCreate.model_validate_json(text)
    except ValueError:
        return  # OpenDSR's raw body, or a bulk of several lines
    yield body.model_dump_json().encode()
    yield body.model_dump_json(exclude={"records", "callback_urls"}).encode()
    caller = Caller("acme", Role.COMPLIANCE, uuid.UUID(int=0))
    request = RequestParser(caller, IdentityHasher(b"k" * 32), 0.0, "request").parse(body)
    yield request.content
    yield from (digest_content(kind, [request]) for kind in ("deletion", "bulk", "opendsr"))
