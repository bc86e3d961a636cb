"""Requests that came over OpenDSR; pages of jobs and certificates"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "opendsr_requests",
        sa.Column("caller", sa.String(length=100), nullable=False),
        sa.Column("subject_request_id", sa.Uuid(), nullable=False),
        sa.Column("deletion_id", sa.Uuid(), nullable=False),
        sa.Column("body_mac", sa.LargeBinary(length=32), nullable=False),
        sa.Column("callback_urls", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["deletion_id"], ["deletions.id"], name=op.f("fk_opendsr_requests_deletion_id")),
        sa.PrimaryKeyConstraint("caller", "subject_request_id", name=op.f("pk_opendsr_requests")),
        sa.UniqueConstraint("deletion_id", name=op.f("uq_opendsr_requests_deletion_id")),
    )
    for column in ("caller", "status", "regulation"):
        op.create_index(f"ix_deletions_{column}_received_at_id", "deletions", [column, "received_at", "id"])
    op.drop_index("ix_deletions_caller", "deletions")
    op.drop_index("ix_deletions_status", "deletions")
    op.create_index("ix_batches_started_at_id", "batches", ["started_at", "id"])
    op.create_index("ix_certificates_issued_at_id", "certificates", ["issued_at", "id"])
    op.create_index("ix_certificates_model_id_issued_at_id", "certificates", ["model_id", "issued_at", "id"])
    op.drop_index("ix_certificates_model_id", "certificates")


def downgrade() -> None:
    op.create_index("ix_deletions_status", "deletions", ["status"])
    op.create_index("ix_deletions_caller", "deletions", ["caller"])
    for column in ("caller", "status", "regulation"):
        op.drop_index(f"ix_deletions_{column}_received_at_id", "deletions")
    op.create_index("ix_certificates_model_id", "certificates", ["model_id"])
    op.drop_index("ix_certificates_model_id_issued_at_id", "certificates")
    op.drop_index("ix_certificates_issued_at_id", "certificates")
    op.drop_index("ix_batches_started_at_id", "batches")
    op.drop_table("opendsr_requests")
