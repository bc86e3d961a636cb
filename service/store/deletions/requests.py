"""Parsed deletion requests, as the intake passes them to the store."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from service.store.deletions.views import NamedRecord

Mac = Callable[[bytes], bytes]
"""Keyed hash under the identity key."""
RequestKey = tuple[str, uuid.UUID]
"""Caller and subject_request_id."""


@dataclass(frozen=True)
class OpenDsrReference:
    """An OpenDSR request, by its caller and the id that the caller gave it."""

    caller: str
    subject_request_id: uuid.UUID
    mac: Mac = field(compare=False)

    @property
    def key(self) -> RequestKey:
        return self.caller, self.subject_request_id


@dataclass(frozen=True)
class DeletionRequest:
    """A parsed request for one deletion. Identities are keyed hashes already."""

    caller: str
    regulation: str
    lookups: Sequence[bytes]
    model_ids: Sequence[uuid.UUID] | None
    """Models to search for the subjects; None means all that the caller may name."""
    request_id: str
    window_seconds: float
    """How long to wait for other deletions to share a batch with."""
    records: Sequence[NamedRecord] = ()
    """Rows to forget by themselves: other rows of the same subject stay."""
    callback_urls: Sequence[str] = ()
    """URLs that are sent each change of status."""
    opendsr: OpenDsrReference | None = None
    """Set if the request came over OpenDSR."""
    body_id: uuid.UUID = field(default_factory=uuid.uuid4)
    """Id of the body that it was part of (bodies.py). The lines of a bulk have the same."""
    allowed_models: frozenset[uuid.UUID] | None = None
    """Models that the caller's token may name; None for all."""
    content: bytes = field(default=b"", repr=False)
    """Plain digest of all that it names, from which a person can be guessed: never stored."""

    @property
    def searched_models(self) -> Sequence[uuid.UUID] | None:
        """Return the models in which the subjects are looked for; None for all."""
        if self.model_ids is not None or self.allowed_models is None:
            return self.model_ids
        return sorted(self.allowed_models)

    def allows_model(self, model_id: uuid.UUID) -> bool:
        return self.allowed_models is None or model_id in self.allowed_models
