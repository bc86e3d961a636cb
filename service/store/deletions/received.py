"""A deletion that is about to be stored."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Received:
    """A deletion as its row will be. A mapped object, which watches its own attributes, takes ten times as long."""

    id: uuid.UUID
    caller: str
    regulation: str
    status: str
    outcome: str | None
    request_id: str
    callback_urls: list[str] | None
    received_at: datetime
    due_at: datetime
    completed_at: datetime | None
    extension_reason: str | None = None
