"""Check values of secrets; bodies of requests are no longer recognisable after erasure"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

HASHED_TABLES = ("idempotency_keys", "opendsr_requests")
HAS_ROWS = " OR ".join(f"EXISTS (SELECT 1 FROM {name})" for name in HASHED_TABLES)  # noqa: S608
IS_BULK = """response LIKE '{"line":%'"""


def upgrade() -> None:
    op.create_table(
        "secret_checks",
        sa.Column("name", sa.String(50), nullable=False),
        sa.Column("value", sa.LargeBinary(32), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_secret_checks")),
    )
    op.create_table(
        "erasure_traces",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_erasure_traces")),
    )
    op.create_table(
        "request_bodies",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("salt", sa.LargeBinary(32), nullable=False),
        sa.Column("mac", sa.LargeBinary(32), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_request_bodies")),
    )
    op.add_column("deletions", sa.Column("body_id", sa.Uuid(), nullable=True))
    with op.batch_alter_table("idempotency_keys") as table:
        table.add_column(sa.Column("kind", sa.String(16), nullable=True))
        table.add_column(sa.Column("body_id", sa.Uuid(), nullable=True))
        table.drop_column("body_mac")
        table.drop_column("deletion_id")
    op.add_column("idempotency_keys", sa.Column("body_mac", sa.LargeBinary(32), nullable=True))
    op.execute(f"UPDATE idempotency_keys SET kind = CASE WHEN {IS_BULK} THEN 'bulk' ELSE 'deletion' END")  # noqa: S608
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    random_id = "gen_random_uuid()" if is_postgresql else "lower(hex(randomblob(16)))"
    op.execute(f"UPDATE idempotency_keys SET body_id = {random_id}")  # noqa: S608
    with op.batch_alter_table("idempotency_keys") as table:
        table.alter_column("kind", existing_type=sa.String(16), nullable=False)
        table.alter_column("body_id", existing_type=sa.Uuid(), nullable=False)
        table.create_unique_constraint(op.f("uq_idempotency_keys_body_id"), ["body_id"])
    with op.batch_alter_table("opendsr_requests") as table:
        table.drop_column("body_mac")
    op.execute(f"INSERT INTO erasure_traces (id) SELECT {random_id} WHERE {HAS_ROWS}")  # for the sweep
    if is_postgresql:
        _rewrite_tables()
        _keep_out_of_statistics()


def downgrade() -> None:
    op.drop_column("idempotency_keys", "body_mac")
    for name in HASHED_TABLES:
        op.add_column(name, sa.Column("body_mac", sa.LargeBinary(32), nullable=False, server_default=""))
    with op.batch_alter_table("idempotency_keys") as table:
        table.alter_column("body_mac", existing_type=sa.LargeBinary(32), server_default=None)
        table.add_column(sa.Column("deletion_id", sa.Uuid(), nullable=True))
        table.create_foreign_key(op.f("fk_idempotency_keys_deletion_id"), "deletions", ["deletion_id"], ["id"])
        table.drop_constraint(op.f("uq_idempotency_keys_body_id"), type_="unique")
        table.drop_column("body_id")
        table.drop_column("kind")
    with op.batch_alter_table("opendsr_requests") as table:
        table.alter_column("body_mac", existing_type=sa.LargeBinary(32), server_default=None)
    op.drop_column("deletions", "body_id")
    for name in ("request_bodies", "erasure_traces", "secret_checks"):
        op.drop_table(name)


def _rewrite_tables() -> None:
    """A dropped column's content stays in the table's file until the table is rewritten."""
    for name in HASHED_TABLES:
        op.execute(f"CLUSTER {name} USING pk_{name}")
        op.execute(f"ALTER TABLE {name} SET WITHOUT CLUSTER")


def _keep_out_of_statistics() -> None:
    """The planner's statistics hold samples of a column, also of rows that were deleted since."""
    for name in ("subjects.lookup", "subjects.key", "request_bodies.salt", "request_bodies.mac"):
        table, column = name.split(".")
        op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} TYPE bytea")  # drops the samples there are
        op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET STATISTICS 0")
