"""The audit trail gets its place in a Merkle log; signing keys are kept for ever; data sets have a root"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

UNPLACED = sa.text("leaf_index IS NULL")


def upgrade() -> None:
    op.add_column("versions", sa.Column("dataset_root", sa.String(64), nullable=True))
    op.add_column("audit_entries", sa.Column("leaf_index", sa.BigInteger(), nullable=True))
    op.create_index("ix_audit_entries_leaf_index", "audit_entries", ["leaf_index"], unique=True)
    op.create_index(
        "ix_audit_entries_unplaced", "audit_entries", ["id"], sqlite_where=UNPLACED, postgresql_where=UNPLACED
    )
    op.create_table(
        "log_tiles",
        sa.Column("level", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("number", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("hashes", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("level", "number", name=op.f("pk_log_tiles")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("size", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("root", sa.LargeBinary(32), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("cosignatures", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("published_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("size", name=op.f("pk_checkpoints")),
    )
    op.create_table(
        "signing_keys",
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("public_key", sa.LargeBinary(32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("retired_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_signing_keys")),
    )
    _store_certificates("EXTERNAL")


def downgrade() -> None:
    _store_certificates("EXTENDED")
    op.drop_table("signing_keys")
    op.drop_table("checkpoints")
    op.drop_table("log_tiles")
    op.drop_index("ix_audit_entries_unplaced", "audit_entries")
    op.drop_index("ix_audit_entries_leaf_index", "audit_entries")
    op.drop_column("audit_entries", "leaf_index")
    op.drop_column("versions", "dataset_root")


def _store_certificates(storage: str) -> None:
    """As they are: hashes and signatures do not get smaller, and PostgreSQL tries for longer than it takes to store."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"ALTER TABLE certificates ALTER COLUMN bundle SET STORAGE {storage}")
