"""Our states in OpenDSR's words."""

from __future__ import annotations

from typing import Literal

from service.store.states import DeletionStatus

REQUEST_STATUS: dict[DeletionStatus, Literal["pending", "in_progress", "completed", "cancelled"]] = {
    DeletionStatus.PENDING: "pending",
    DeletionStatus.RUNNING: "in_progress",
    DeletionStatus.COMPLETED: "completed",
    DeletionStatus.CANCELLED: "cancelled",
    # The protocol knows no failure: it stays in progress until an operator or a retry ends it.
    DeletionStatus.FAILED: "in_progress",
}
