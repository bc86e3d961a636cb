"""Policies frozen at receipt; a model's deletions in order; how a batch went; one summary a day"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

deletions = sa.table("deletions", sa.column("id"), sa.column("received_at"))
targets = sa.table("deletion_targets", sa.column("deletion_id"), sa.column("received_at"))
BY_MODEL = "ix_deletion_targets_model_id_received_at_deletion_id"
SUMMARY = sa.text("action = 'summary.daily'")


def upgrade() -> None:
    op.add_column("deletion_targets", sa.Column("policy", sa.JSON(), nullable=True))
    op.add_column(
        "deletion_targets",
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False, server_default="1970-01-01 00:00:00"),
    )
    received_at = sa.select(deletions.c.received_at).where(deletions.c.id == targets.c.deletion_id).scalar_subquery()
    op.execute(sa.update(targets).values(received_at=received_at))
    op.create_index(BY_MODEL, "deletion_targets", ["model_id", "received_at", "deletion_id"])
    op.add_column("batches", sa.Column("trace", sa.JSON(), nullable=True))
    op.create_index(
        "uq_audit_entries_summary",
        "audit_entries",
        ["concerns"],
        unique=True,
        sqlite_where=SUMMARY,
        postgresql_where=SUMMARY,
    )


def downgrade() -> None:
    op.drop_index("uq_audit_entries_summary", "audit_entries")
    op.drop_column("batches", "trace")
    op.drop_index(BY_MODEL, "deletion_targets")
    op.drop_column("deletion_targets", "received_at")
    op.drop_column("deletion_targets", "policy")
