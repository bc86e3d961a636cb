"""Statement keys and log keys; certificates that replace others"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

CURRENT = sa.text("replaced_by IS NULL")
ONE_PER_DELETION = "uq_certificates_deletion_id_model_id"


def upgrade() -> None:
    op.add_column("signing_keys", sa.Column("use", sa.String(16), nullable=True))
    with op.batch_alter_table("certificates") as table:
        table.add_column(sa.Column("replaced_by", sa.Uuid(), nullable=True))
        table.drop_constraint(ONE_PER_DELETION, type_="unique")
    op.create_index(
        "uq_certificates_current",
        "certificates",
        ["deletion_id", "model_id"],
        unique=True,
        sqlite_where=CURRENT,
        postgresql_where=CURRENT,
    )
    op.create_table(
        "replaced_absences",
        sa.Column("deletion_id", sa.Uuid(), nullable=False),
        sa.Column("statement", sa.String(64), nullable=False),
        sa.Column("issued_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("bundle", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["deletion_id"], ["deletions.id"], name=op.f("fk_replaced_absences_deletion_id")),
        sa.PrimaryKeyConstraint("deletion_id", "statement", name=op.f("pk_replaced_absences")),
    )


def downgrade() -> None:
    op.drop_table("replaced_absences")
    op.drop_index("uq_certificates_current", "certificates")
    op.execute("DELETE FROM certificates WHERE replaced_by IS NOT NULL")
    with op.batch_alter_table("certificates") as table:
        table.drop_column("replaced_by")
        table.create_unique_constraint(ONE_PER_DELETION, ["deletion_id", "model_id"])
    op.drop_column("signing_keys", "use")
