"""Failed batches are halved; a doorbell says which turn of its model it is for"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("deletion_targets", sa.Column("batch_limit", sa.Integer(), nullable=True))
    op.add_column("models", sa.Column("turn", sa.Integer(), nullable=False, server_default=sa.text("0")))


def downgrade() -> None:
    op.drop_column("models", "turn")
    op.drop_column("deletion_targets", "batch_limit")
