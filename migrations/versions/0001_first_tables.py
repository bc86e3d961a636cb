"""First tables"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "artifacts",
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("destroy_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("destroyed_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("model_id", "digest", name=op.f("pk_artifacts")),
    )
    with op.batch_alter_table("artifacts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_artifacts_destroy_at"), ["destroy_at"], unique=False)

    op.create_table(
        "audit_entries",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("action", sa.String(length=40), nullable=False),
        sa.Column("concerns", sa.String(length=100), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_entries")),
    )
    with op.batch_alter_table("audit_entries", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_audit_entries_concerns"), ["concerns"], unique=False)

    op.create_table(
        "deletions",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("caller", sa.String(length=100), nullable=False),
        sa.Column("regulation", sa.String(length=10), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deletions")),
    )
    with op.batch_alter_table("deletions", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_deletions_caller"), ["caller"], unique=False)
        batch_op.create_index(batch_op.f("ix_deletions_status"), ["status"], unique=False)

    op.create_table(
        "models",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("family", sa.String(length=50), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("policy_epsilon", sa.Float(precision=53), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_models")),
    )
    op.create_table(
        "subjects",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("lookup", sa.LargeBinary(length=32), nullable=False),
        sa.Column("key", sa.LargeBinary(length=32), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_subjects")),
        sa.UniqueConstraint("lookup", name=op.f("uq_subjects_lookup")),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("caller", sa.String(length=100), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_tokens_digest")),
    )
    op.create_table(
        "batches",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("worker", sa.String(length=200), nullable=False),
        sa.Column("phase", sa.String(length=32), nullable=False),
        sa.Column("percent", sa.Float(precision=53), nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_batches_model_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
    )
    with op.batch_alter_table("batches", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_batches_model_id"), ["model_id"], unique=False)
        batch_op.create_index(
            "uq_batches_running",
            ["model_id"],
            unique=True,
            sqlite_where=sa.text("status = 'running'"),
            postgresql_where=sa.text("status = 'running'"),
        )

    op.create_table(
        "deletion_subjects",
        sa.Column("deletion_id", sa.Uuid(), nullable=False),
        sa.Column("commitment", sa.String(length=64), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=True),
        sa.ForeignKeyConstraint(["deletion_id"], ["deletions.id"], name=op.f("fk_deletion_subjects_deletion_id")),
        sa.ForeignKeyConstraint(
            ["subject_id"], ["subjects.id"], name=op.f("fk_deletion_subjects_subject_id"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("deletion_id", "commitment", name=op.f("pk_deletion_subjects")),
    )
    with op.batch_alter_table("deletion_subjects", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_deletion_subjects_subject_id"), ["subject_id"], unique=False)

    op.create_table(
        "idempotency_keys",
        sa.Column("caller", sa.String(length=100), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("body_mac", sa.LargeBinary(length=32), nullable=False),
        sa.Column("deletion_id", sa.Uuid(), nullable=False),
        sa.Column("response", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["deletion_id"], ["deletions.id"], name=op.f("fk_idempotency_keys_deletion_id")),
        sa.PrimaryKeyConstraint("caller", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_table(
        "records",
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("record", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_records_model_id")),
        sa.ForeignKeyConstraint(["subject_id"], ["subjects.id"], name=op.f("fk_records_subject_id")),
        sa.PrimaryKeyConstraint("model_id", "record", name=op.f("pk_records")),
    )
    with op.batch_alter_table("records", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_records_subject_id"), ["subject_id"], unique=False)

    op.create_table(
        "versions",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("posterior_digest", sa.String(length=64), nullable=False),
        sa.Column("dataset_digest", sa.String(length=64), nullable=False),
        sa.Column("record_count", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("superseded_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_versions_model_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_versions")),
        sa.UniqueConstraint("model_id", "number", name=op.f("uq_versions_model_id_number")),
    )
    with op.batch_alter_table("versions", schema=None) as batch_op:
        batch_op.create_index(
            "uq_versions_current",
            ["model_id"],
            unique=True,
            sqlite_where=sa.text("superseded_at IS NULL"),
            postgresql_where=sa.text("superseded_at IS NULL"),
        )

    op.create_table(
        "certificates",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("deletion_id", sa.Uuid(), nullable=False),
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("version_id", sa.Uuid(), nullable=False),
        sa.Column("batch_id", sa.Uuid(), nullable=False),
        sa.Column("level", sa.String(length=16), nullable=False),
        sa.Column("epsilon", sa.Float(precision=53), nullable=False),
        sa.Column("issued_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("bundle", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_certificates_batch_id")),
        sa.ForeignKeyConstraint(["deletion_id"], ["deletions.id"], name=op.f("fk_certificates_deletion_id")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_certificates_model_id")),
        sa.ForeignKeyConstraint(["version_id"], ["versions.id"], name=op.f("fk_certificates_version_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_certificates")),
        sa.UniqueConstraint("deletion_id", "model_id", name=op.f("uq_certificates_deletion_id_model_id")),
    )
    with op.batch_alter_table("certificates", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_certificates_model_id"), ["model_id"], unique=False)

    op.create_table(
        "deletion_targets",
        sa.Column("deletion_id", sa.Uuid(), nullable=False),
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("batch_id", sa.Uuid(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=False),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_deletion_targets_batch_id")),
        sa.ForeignKeyConstraint(["deletion_id"], ["deletions.id"], name=op.f("fk_deletion_targets_deletion_id")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_deletion_targets_model_id")),
        sa.PrimaryKeyConstraint("deletion_id", "model_id", name=op.f("pk_deletion_targets")),
    )
    with op.batch_alter_table("deletion_targets", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_deletion_targets_batch_id"), ["batch_id"], unique=False)
        batch_op.create_index("ix_deletion_targets_model_id_status", ["model_id", "status"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("deletion_targets", schema=None) as batch_op:
        batch_op.drop_index("ix_deletion_targets_model_id_status")
        batch_op.drop_index(batch_op.f("ix_deletion_targets_batch_id"))

    op.drop_table("deletion_targets")
    with op.batch_alter_table("certificates", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_certificates_model_id"))

    op.drop_table("certificates")
    with op.batch_alter_table("versions", schema=None) as batch_op:
        batch_op.drop_index(
            "uq_versions_current",
            sqlite_where=sa.text("superseded_at IS NULL"),
            postgresql_where=sa.text("superseded_at IS NULL"),
        )

    op.drop_table("versions")
    with op.batch_alter_table("records", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_records_subject_id"))

    op.drop_table("records")
    op.drop_table("idempotency_keys")
    with op.batch_alter_table("deletion_subjects", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_deletion_subjects_subject_id"))

    op.drop_table("deletion_subjects")
    with op.batch_alter_table("batches", schema=None) as batch_op:
        batch_op.drop_index(
            "uq_batches_running",
            sqlite_where=sa.text("status = 'running'"),
            postgresql_where=sa.text("status = 'running'"),
        )
        batch_op.drop_index(batch_op.f("ix_batches_model_id"))

    op.drop_table("batches")
    op.drop_table("tokens")
    op.drop_table("subjects")
    op.drop_table("models")
    with op.batch_alter_table("deletions", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_deletions_status"))
        batch_op.drop_index(batch_op.f("ix_deletions_caller"))

    op.drop_table("deletions")
    with op.batch_alter_table("audit_entries", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_audit_entries_concerns"))

    op.drop_table("audit_entries")
    with op.batch_alter_table("artifacts", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_artifacts_destroy_at"))

    op.drop_table("artifacts")
