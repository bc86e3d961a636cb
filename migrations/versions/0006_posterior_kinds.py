"""Models are variational parameters or sample sets"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Every model of before is variational.
    op.add_column(
        "models", sa.Column("posterior_kind", sa.String(16), nullable=False, server_default=sa.text("'variational'"))
    )


def downgrade() -> None:
    op.drop_column("models", "posterior_kind")
