"""The outbox of callbacks; their URLs move from OpenDSR's requests to the deletions themselves"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

PENDING = sa.text("status = 'pending'")


def upgrade() -> None:
    op.add_column("deletions", sa.Column("callback_urls", sa.JSON(), nullable=True))
    op.execute(
        "UPDATE deletions SET callback_urls = (SELECT asked.callback_urls FROM opendsr_requests AS asked "
        "WHERE asked.deletion_id = deletions.id)"
    )
    op.drop_column("opendsr_requests", "callback_urls")
    op.create_table(
        "callbacks",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("deletion_id", sa.Uuid(), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("message", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["deletion_id"], ["deletions.id"], name=op.f("fk_callbacks_deletion_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_callbacks")),
        sa.UniqueConstraint("deletion_id", "sequence", name=op.f("uq_callbacks_deletion_id_sequence")),
    )
    op.create_index("ix_callbacks_created_at_id", "callbacks", ["created_at", "id"])
    op.create_index("ix_callbacks_status_created_at_id", "callbacks", ["status", "created_at", "id"])
    op.create_index("ix_callbacks_waiting", "callbacks", ["not_before"], sqlite_where=PENDING, postgresql_where=PENDING)


def downgrade() -> None:
    op.drop_table("callbacks")
    op.add_column(
        "opendsr_requests", sa.Column("callback_urls", sa.JSON(), nullable=False, server_default=sa.text("'[]'"))
    )
    op.execute(
        "UPDATE opendsr_requests SET callback_urls = (SELECT asked.callback_urls FROM deletions AS asked "
        "WHERE asked.id = opendsr_requests.deletion_id) WHERE EXISTS (SELECT 1 FROM deletions AS asked "
        "WHERE asked.id = opendsr_requests.deletion_id AND asked.callback_urls IS NOT NULL)"
    )
    op.drop_column("deletions", "callback_urls")
