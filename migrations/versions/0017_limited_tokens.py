"""Tokens expire and can be limited to models and networks; a deletion is binding from the end of its window on"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tokens", sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("tokens", sa.Column("models", sa.JSON(), nullable=True))
    op.add_column("tokens", sa.Column("networks", sa.JSON(), nullable=True))
    op.add_column("deletions", sa.Column("models", sa.JSON(), nullable=True))
    op.add_column("deletions", sa.Column("binding_at", sa.DateTime(timezone=True), nullable=True))
    # Their callers were shown everything at once.
    op.execute("UPDATE deletions SET binding_at = received_at")
    op.create_table(
        "pending_absences",
        sa.Column("deletion_id", sa.Uuid(), nullable=False),
        sa.Column("binding_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("models_in_store", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["deletion_id"], ["deletions.id"], name=op.f("fk_pending_absences_deletion_id")),
        sa.PrimaryKeyConstraint("deletion_id", name=op.f("pk_pending_absences")),
    )
    op.create_index("ix_pending_absences_binding_at", "pending_absences", ["binding_at"])


def downgrade() -> None:
    if op.get_bind().execute(sa.text("SELECT count(*) FROM pending_absences")).scalar_one():
        raise RuntimeError("absences wait to be certified: stop the API, let the sweep run for a batch window, retry")
    op.drop_table("pending_absences")
    op.drop_column("deletions", "binding_at")
    op.drop_column("deletions", "models")
    for name in ("networks", "models", "expires_at"):
        op.drop_column("tokens", name)
