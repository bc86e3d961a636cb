"""When a deletion is due; where a batch ran and which rungs it tried"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from service.store.deletions import deadlines

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

deletions = sa.table(
    "deletions",
    sa.column("id", sa.Uuid),
    sa.column("regulation", sa.String),
    sa.column("received_at", sa.DateTime(timezone=True)),
    sa.column("due_at", sa.DateTime(timezone=True)),
)


def upgrade() -> None:
    op.add_column(
        "deletions",
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False, server_default="1970-01-01 00:00:00"),
    )
    op.add_column("deletions", sa.Column("extension_reason", sa.Text(), nullable=True))
    rows = op.get_bind().execute(sa.select(deletions.c.id, deletions.c.regulation, deletions.c.received_at)).all()
    for deletion_id, regulation, received_at in rows:
        due_at = deadlines.due(regulation, received_at)
        op.execute(sa.update(deletions).where(deletions.c.id == deletion_id).values(due_at=due_at))
    op.create_index("ix_deletions_due_at", "deletions", ["due_at"])
    op.create_index("ix_deletions_received_at_id", "deletions", ["received_at", "id"])
    op.add_column("batches", sa.Column("device", sa.String(32), nullable=True))
    op.add_column("batches", sa.Column("rungs", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("batches", "rungs")
    op.drop_column("batches", "device")
    op.drop_index("ix_deletions_received_at_id", "deletions")
    op.drop_index("ix_deletions_due_at", "deletions")
    op.drop_column("deletions", "extension_reason")
    op.drop_column("deletions", "due_at")
