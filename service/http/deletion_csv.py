"""Deletions as CSV: the columns and how each is written."""

from __future__ import annotations

from collections.abc import Iterator

from service.http.csv_stream import Cell, csv_chunks
from service.schemas.deletions import DeletionOut, deletion_out
from service.store.database import Database
from service.store.deletions.listing import Criteria, export

HEADER = (
    "id", "status", "regulation", "received_at", "due_at", "days_left", "overdue", "completed_at", "subjects",
    "models", "outcome", "extension_reason", "request_id",
)  # fmt: skip


def deletions_csv(database: Database, criteria: Criteria) -> Iterator[str]:
    pages = export(database, criteria)
    return csv_chunks(HEADER, ((_row(deletion_out(view)) for view in page) for page in pages))


def _row(deletion: DeletionOut) -> list[Cell]:
    """Return the values as in the JSON form; lists of commitments and models are joined by spaces."""
    values = deletion.model_dump(mode="json")
    values["subjects"] = " ".join(deletion.subjects)
    values["models"] = " ".join(f"{model.model_id}:{model.status}" for model in deletion.models)
    values["overdue"] = str(deletion.overdue).lower()
    return [values[column] for column in HEADER]
