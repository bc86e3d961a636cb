"""Effective draws of a version; refreshes, which continue the chains of a version whose weights are worn"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("versions", sa.Column("draws", sa.Integer(), nullable=True))
    op.add_column("versions", sa.Column("effective_draws", sa.Float(53), nullable=True))
    # The check of readiness counts the draws: current sample sets are checked once more.
    op.execute(
        "UPDATE versions SET readiness = NULL WHERE superseded_at IS NULL "
        "AND model_id IN (SELECT id FROM models WHERE posterior_kind = 'samples')"
    )
    op.create_table(
        "refreshes",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("version_id", sa.Uuid(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("claim_id", sa.Uuid(), nullable=True),
        sa.Column("worker", sa.String(200), nullable=True),
        sa.Column("phase", sa.String(32), nullable=False),
        sa.Column("percent", sa.Float(53), nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.Column("checkpoint_digest", sa.String(64), nullable=True),
        sa.Column("posterior_digest", sa.String(64), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_refreshes_model_id")),
        sa.ForeignKeyConstraint(["version_id"], ["versions.id"], name=op.f("fk_refreshes_version_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_refreshes")),
    )
    for columns in (["model_id"], ["version_id"], ["started_at", "id"]):
        op.create_index(f"ix_refreshes_{'_'.join(columns)}", "refreshes", columns)
    unfinished = sa.text("finished_at IS NULL")
    op.create_index(
        "uq_refreshes_unfinished",
        "refreshes",
        ["model_id"],
        unique=True,
        sqlite_where=unfinished,
        postgresql_where=unfinished,
    )


def downgrade() -> None:
    # Nothing else would ever destroy them.
    op.execute("UPDATE artifacts SET destroy_at = CURRENT_TIMESTAMP WHERE kind = 'checkpoint' AND destroyed_at IS NULL")
    op.drop_table("refreshes")
    op.drop_column("versions", "effective_draws")
    op.drop_column("versions", "draws")
