"""Bodies and signatures of callbacks, in the native format or, for requests made over OpenDSR, in that format."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.settings import Settings
from service.store.callbacks.claiming import ClaimedCallback
from service.store.canonical_json import canonical_json
from service.store.deletions.opendsr import REQUEST_STATUS
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
    """Builds and signs messages. Each attempt is signed again, so that no callback carries a retired key."""

    settings: Settings
    signer: StatementSigner

    @functools.cached_property
    def _processor(self) -> ProcessorIdentity:
        return ProcessorIdentity.load(self.settings)

    def write(self, callback: ClaimedCallback) -> Message:
        return self._native(callback) if callback.subject_request_id is None else self._opendsr(callback)

    def _native(self, callback: ClaimedCallback) -> Message:
        body = canonical_json(
            {
                "id": str(callback.id),
                "sequence": callback.sequence,
                "deletion_id": str(callback.deletion_id),
                "deletion": f"/api/v1/deletions/{callback.deletion_id}",
                **callback.message,
            }
        )
        signature = self.signer.sign_detached(body, CALLBACK_TYPE)
        return _json(callback.url, body, {"X-Lethe-Key-Id": self.signer.key_id, "X-Lethe-Signature": signature})

    def _opendsr(self, callback: ClaimedCallback) -> Message:
        fields: dict[str, Any] = {
            "controller_id": callback.caller,
            "expected_completion_time": callback.message["due_at"],
            "status_callback_url": callback.url,
            "subject_request_id": str(callback.subject_request_id),
            "request_status": REQUEST_STATUS[DeletionStatus(callback.message["status"])],
            **self._results(callback),
        }
        body = canonical_json(fields)
        domain, signature = self._processor.domain, self._processor.sign(body)
        headers = {f"X-{name}-Processor-Domain": domain for name in OPENDSR_NAMES}
        return _json(callback.url, body, {**headers, **{f"X-{name}-Signature": signature for name in OPENDSR_NAMES}})

    def _results(self, callback: ClaimedCallback) -> dict[str, Any]:
        """Return the results fields of GET /v2/requests/{id}, with LETHE_PUBLIC_URL as the base address."""
        base, count = self.settings.public_url.rstrip("/"), len(callback.message["certificates"])
        if not base or not count or callback.message["status"] != DeletionStatus.COMPLETED:
            return {}
        return {"results_url": f"{base}/api/v1/deletions/{callback.deletion_id}", "results_count": count}


def _json(url: str, body: bytes, headers: Mapping[str, str]) -> Message:
    return Message(url, body, {"Content-Type": "application/json", **headers})
