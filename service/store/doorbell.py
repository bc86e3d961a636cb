"""The doorbell: a small message that wakes a worker. Losing it loses nothing, since the sweep rings again."""

from __future__ import annotations

import uuid

import structlog
from celery import Celery
from kombu.exceptions import OperationalError

FORGET_TASK = "worker.forget"
CHECK_TASK = "worker.check"
EXPIRY_SECONDS = 60
"""A doorbell nobody answered in this time is dropped: the sweep has rung again long since."""

log = structlog.get_logger("doorbell")


def celery_app(broker: str) -> Celery:
    """A Celery that knows the broker and no task: enough to ring."""
    app = Celery("lethe", broker=broker, set_as_current=False)
    app.conf.update(
        task_ignore_result=True,
        broker_transport_options={"socket_connect_timeout": 2, "socket_timeout": 10, "max_retries": 1},
        broker_connection_retry_on_startup=True,
    )
    return app


class Doorbell:
    def __init__(self, broker: str) -> None:
        self._app = celery_app(broker)

    def ring(self, model_id: uuid.UUID, delay_seconds: float = 0.0, task: str = FORGET_TASK) -> bool:
        """Wake a worker for a model. An unreachable broker is logged, not raised: the row is committed."""
        try:
            self._app.send_task(
                task,
                args=[str(model_id)],
                countdown=delay_seconds,
                expires=delay_seconds + EXPIRY_SECONDS,
                retry=False,
            )
        except (OperationalError, OSError) as error:
            log.warning("doorbell.silent", model_id=str(model_id), reason=type(error).__name__)
            return False
        return True

    def ping(self) -> None:
        """Raise unless the broker answers."""
        with self._app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=3)

    def close(self) -> None:
        self._app.close()
