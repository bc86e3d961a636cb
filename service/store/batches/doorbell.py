"""The doorbell: a small message that wakes a worker. Losing it loses nothing, since the sweep rings again."""

from __future__ import annotations

import uuid

import structlog
from celery import Celery
from kombu.exceptions import OperationalError
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from service.store.database import Database
from service.store.states import Device
from service.store.tables import Model

FORGET_TASK = "worker.forget"
CHECK_TASK = "worker.readiness"
EXPIRY_SECONDS = 60
"""A doorbell nobody answered in this time is dropped: the sweep has rung again long since."""
QUEUES = {device: f"lethe.{device}" for device in Device}
"""Where to ring for a model; in Redis each is a list of that very name, whose length says how much waits."""

log = structlog.get_logger("doorbell")


def celery_app(broker: str) -> Celery:
    """A Celery that knows the broker and no task: enough to ring."""
    app = Celery("lethe", broker=broker, set_as_current=False)
    app.conf.update(
        task_ignore_result=True,
        # A message is a model id and a number: nothing that needs, or gets, more than JSON.
        task_serializer="json",
        accept_content=["json"],
        task_default_queue=QUEUES[Device.CPU],
        broker_transport_options={"socket_connect_timeout": 2, "socket_timeout": 10, "max_retries": 1},
        broker_connection_retry_on_startup=True,
    )
    return app


class Doorbell:
    def __init__(self, broker: str, database: Database) -> None:
        self._app = celery_app(broker)
        self._database = database

    def ring(self, model_id: uuid.UUID, delay_seconds: float = 0.0, task: str = FORGET_TASK) -> bool:
        """Wake a worker that has what the model needs.

        An unreachable broker is logged, not raised: the row is committed.
        """
        try:
            queue, turn = self._line_of(model_id)
            self._app.send_task(
                task,
                args=[str(model_id), turn] if task == FORGET_TASK else [str(model_id)],
                queue=queue,
                countdown=delay_seconds,
                expires=delay_seconds + EXPIRY_SECONDS,
                retry=False,
            )
        except (OperationalError, OSError, SQLAlchemyError) as error:
            log.warning("doorbell.silent", model_id=str(model_id), reason=type(error).__name__)
            return False
        return True

    def ping(self) -> None:
        """Raise unless the broker answers."""
        with self._app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=3)

    def close(self) -> None:
        self._app.close()

    def _line_of(self, model_id: uuid.UUID) -> tuple[str, int]:
        """Where to ring, and for which turn: once the next batch has begun, this doorbell is answered."""
        with self._database.reading() as session:
            found = session.execute(select(Model.device, Model.turn).where(Model.id == model_id)).first()
        device, turn = found or (Device.CPU, 0)
        return QUEUES[Device(device)], turn
