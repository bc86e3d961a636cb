"""Models say which workers may take them"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Any worker took every model of before.
    op.add_column("models", sa.Column("device", sa.String(16), nullable=False, server_default=sa.text("'cpu'")))


def downgrade() -> None:
    op.drop_column("models", "device")
