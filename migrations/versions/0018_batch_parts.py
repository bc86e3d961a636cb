"""Members of ensembles are trained side by side by several workers"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "batch_parts",
        sa.Column("batch_id", sa.Uuid(), nullable=False),
        sa.Column("member", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("worker", sa.String(length=200), nullable=True),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("digest", sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_batch_parts_batch_id")),
        sa.PrimaryKeyConstraint("batch_id", "member", name=op.f("pk_batch_parts")),
    )


def downgrade() -> None:
    op.drop_table("batch_parts")
