"""Callbacks are claimed by caller in turn"""

from __future__ import annotations

from urllib.parse import urlsplit

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

PENDING = sa.text("status = 'pending'")
CALLBACKS = sa.table("callbacks", sa.column("id", sa.Uuid()), sa.column("url", sa.Text()), sa.column("host", sa.Text()))


def upgrade() -> None:
    op.add_column("callbacks", sa.Column("caller", sa.String(100), nullable=False, server_default=""))
    op.add_column("callbacks", sa.Column("host", sa.Text(), nullable=False, server_default=""))
    op.execute("UPDATE callbacks SET caller = (SELECT d.caller FROM deletions AS d WHERE d.id = callbacks.deletion_id)")
    _fill_hosts()
    op.drop_index("ix_callbacks_waiting", "callbacks")
    op.create_index(
        "ix_callbacks_waiting",
        "callbacks",
        ["caller", "not_before"],
        sqlite_where=PENDING,
        postgresql_where=PENDING,
    )


def downgrade() -> None:
    op.drop_index("ix_callbacks_waiting", "callbacks")
    op.create_index("ix_callbacks_waiting", "callbacks", ["not_before"], sqlite_where=PENDING, postgresql_where=PENDING)
    op.drop_column("callbacks", "host")
    op.drop_column("callbacks", "caller")


def _fill_hosts() -> None:
    """Set the host of callbacks that may still be sent: those that wait, and dead ones that may be sent again."""
    connection = op.get_bind()
    unsent = sa.select(CALLBACKS.c.id, CALLBACKS.c.url).where(sa.text("status <> 'delivered'"))
    hosts = [{"row": row, "name": urlsplit(url).hostname or ""} for row, url in connection.execute(unsent)]
    if hosts:
        change = sa.update(CALLBACKS).where(CALLBACKS.c.id == sa.bindparam("row")).values(host=sa.bindparam("name"))
        connection.execute(change, hosts)
