"""Bodies and signatures of callbacks, in the native format or, for requests made over OpenDSR, in that format."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import rfc8785

from service.settings import Settings
from service.store.callbacks.outbox import Claimed
from service.store.deletions.opendsr_status import REQUEST_STATUS
from service.store.signing.processor_identity import ProcessorIdentity
from service.store.signing.statements import CALLBACK_TYPE, StatementSigner
from service.store.states import DeletionStatus

OPENDSR_NAMES = ("OpenDSR", "OpenGDPR")
"""Both header prefixes are sent: platforms that implement version 1 expect the older one."""


@dataclass(frozen=True)
class Message:
    url: str
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True)
class MessageWriter:
    """Builds and signs messages. Each attempt is signed anew, so that no callback carries a retired key."""

    settings: Settings
    signer: StatementSigner

    @functools.cached_property
    def _processor(self) -> ProcessorIdentity:
        return ProcessorIdentity.load(self.settings)

    def write(self, claimed: Claimed) -> Message:
        return self._native(claimed) if claimed.subject_request_id is None else self._opendsr(claimed)

    def _native(self, claimed: Claimed) -> Message:
        body = rfc8785.dumps(
            {
                "id": str(claimed.id),
                "sequence": claimed.sequence,
                "deletion_id": str(claimed.deletion_id),
                "deletion": f"/api/v1/deletions/{claimed.deletion_id}",
                **claimed.message,
            }
        )
        signature = self.signer.sign_detached(body, CALLBACK_TYPE)
        return _json(claimed.url, body, {"X-Lethe-Key-Id": self.signer.key_id, "X-Lethe-Signature": signature})

    def _opendsr(self, claimed: Claimed) -> Message:
        fields: dict[str, Any] = {
            "controller_id": claimed.caller,
            "expected_completion_time": claimed.message["due_at"],
            "status_callback_url": claimed.url,
            "subject_request_id": str(claimed.subject_request_id),
            "request_status": REQUEST_STATUS[DeletionStatus(claimed.message["status"])],
            **self._results(claimed),
        }
        body = rfc8785.dumps(fields)
        domain, signature = self._processor.domain, self._processor.sign(body)
        headers = {f"X-{name}-Processor-Domain": domain for name in OPENDSR_NAMES}
        return _json(claimed.url, body, {**headers, **{f"X-{name}-Signature": signature for name in OPENDSR_NAMES}})

    def _results(self, claimed: Claimed) -> dict[str, Any]:
        """Return the results fields of GET /v2/requests/{id}, with LETHE_PUBLIC_URL as the base address."""
        base, count = self.settings.public_url.rstrip("/"), len(claimed.message["certificates"])
        if not base or not count or claimed.message["status"] != DeletionStatus.COMPLETED:
            return {}
        return {"results_url": f"{base}/api/v1/deletions/{claimed.deletion_id}", "results_count": count}


def _json(url: str, body: bytes, headers: Mapping[str, str]) -> Message:
    return Message(url, body, {"Content-Type": "application/json", **headers})
