"""A policy of several parts; what is known of a version's readiness"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

models = sa.table(
    "models", sa.column("policy_epsilon", sa.Float), sa.column("policy", sa.JSON), sa.column("id", sa.Uuid)
)


# In place: batch mode would build "models" anew, which SQLite refuses while rows refer to it.
def upgrade() -> None:
    op.add_column("models", sa.Column("policy", sa.JSON(), nullable=False, server_default="{}"))
    for model_id, epsilon in op.get_bind().execute(sa.select(models.c.id, models.c.policy_epsilon)).all():
        # Retraining was not among the rungs before, so it is not begun now without being asked for.
        policy = {"epsilon": epsilon, "level": "proved", "rungs": ["influence", "newton"], "seconds": None}
        op.execute(sa.update(models).where(models.c.id == model_id).values(policy=policy))
    op.drop_column("models", "policy_epsilon")
    op.add_column("models", sa.Column("never_seen_digest", sa.String(64), nullable=True))
    op.add_column("versions", sa.Column("readiness", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("versions", "readiness")
    op.drop_column("models", "never_seen_digest")
    op.add_column("models", sa.Column("policy_epsilon", sa.Float(53), nullable=False, server_default="0"))
    for model_id, policy in op.get_bind().execute(sa.select(models.c.id, models.c.policy)).all():
        op.execute(sa.update(models).where(models.c.id == model_id).values(policy_epsilon=policy["epsilon"]))
    op.drop_column("models", "policy")
