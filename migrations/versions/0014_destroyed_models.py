"""Models that were emptied are destroyed, with a certificate that has no bound"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("models", sa.Column("destroyed_at", sa.DateTime(timezone=True), nullable=True))
    with op.batch_alter_table("certificates") as certificates:
        certificates.alter_column("epsilon", existing_type=sa.Float(53), nullable=True)


def downgrade() -> None:
    with op.batch_alter_table("certificates") as certificates:
        certificates.alter_column("epsilon", existing_type=sa.Float(53), nullable=False)
    op.drop_column("models", "destroyed_at")
