"""Certificates of absence"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "absences",
        sa.Column("deletion_id", sa.Uuid(), nullable=False),
        sa.Column("issued_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("bundle", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["deletion_id"], ["deletions.id"], name=op.f("fk_absences_deletion_id")),
        sa.PrimaryKeyConstraint("deletion_id", name=op.f("pk_absences")),
    )


def downgrade() -> None:
    op.drop_table("absences")
