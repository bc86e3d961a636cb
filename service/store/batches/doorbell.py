"""The doorbell: a small message that wakes a worker. A lost message does no harm, since the sweep rings again."""

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
REFRESH_TASK = "worker.refresh"
PART_TASK = "worker.part"
EXPIRY_SECONDS = 60
"""An unanswered doorbell is dropped after this time; the sweep has rung again long before."""
QUEUES = {device: f"lethe.{device}" for device in Device}
"""Queue of each device. In Redis each is a list of that name; its length is the number of waiting messages."""

log = structlog.get_logger("doorbell")


def celery_app(broker: str) -> Celery:
    """Return a Celery app with a broker and no tasks: enough to ring."""
    app = Celery("lethe", broker=broker, set_as_current=False)
    app.conf.update(
        task_ignore_result=True,
        # A message is a model id and a number: JSON is enough, and nothing else is accepted.
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
        """Wake a worker with the device the model needs. Return whether the message was sent.

        An unreachable broker is logged and not raised: the deletion is committed already.
        """
        try:
            queue, turn = self._queue_and_turn(model_id)
            # A batch that begins before the delay is over does not take what is due only then.
            args = [str(model_id), None if delay_seconds else turn] if task == FORGET_TASK else [str(model_id)]
            self._app.send_task(
                task,
                args=args,
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

    def _queue_and_turn(self, model_id: uuid.UUID) -> tuple[str, int]:
        """Return the model's queue and turn. The doorbell is answered once the next batch has begun."""
        with self._database.reading() as session:
            row = session.execute(select(Model.device, Model.turn).where(Model.id == model_id)).first()
        device, turn = row or (Device.CPU, 0)
        return QUEUES[Device(device)], turn
