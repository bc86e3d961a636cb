"""Deletions name records, too; an idempotency key may stand for many deletions, or for none"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "deletion_records",
        sa.Column("deletion_id", sa.Uuid(), nullable=False),
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("record", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["deletion_id"], ["deletions.id"], name=op.f("fk_deletion_records_deletion_id")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_deletion_records_model_id")),
        sa.PrimaryKeyConstraint("deletion_id", "model_id", "record", name=op.f("pk_deletion_records")),
    )
    # Batch mode copies the table on SQLite, which is allowed here: no other table refers to it.
    with op.batch_alter_table("idempotency_keys") as table:
        table.alter_column("deletion_id", existing_type=sa.Uuid(), nullable=True)


def downgrade() -> None:
    op.execute("DELETE FROM idempotency_keys WHERE deletion_id IS NULL")
    with op.batch_alter_table("idempotency_keys") as table:
        table.alter_column("deletion_id", existing_type=sa.Uuid(), nullable=False)
    op.drop_table("deletion_records")
