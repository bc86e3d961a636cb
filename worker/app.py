"""The Celery worker. It has three tasks, each started by a doorbell message."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Sequence
from typing import Any

from celery import Celery, signals

from ml.numerics.device import has_cuda
from service.logs import configure_logging
from service.settings import Settings
from service.store.batches.doorbell import CHECK_TASK, FORGET_TASK, PART_TASK, QUEUES, REFRESH_TASK, celery_app
from service.store.states import Device
from worker.context import WorkerContext, process_name
from worker.forget import serve_doorbell, warm_up
from worker.parts import help_training
from worker.readiness import check_current
from worker.refresh import refresh_worn
from worker.shutdown import GracefulShutdown

HARD_LIMIT_MARGIN_SECONDS = 300.0
"""Seconds from the soft time limit, which raises in the task, to the hard one, which kills its process."""
KIBIBYTE = 1024


def create_worker(settings: Settings, name: str) -> Celery:
    """Return the Celery application.

    The settings below only speed up recovery; safety comes from the database.
    """
    app = celery_app(settings.broker)
    limit = settings.task_seconds + HARD_LIMIT_MARGIN_SECONDS
    app.conf.update(
        task_acks_late=True,  # acknowledge after the work: the message of a worker that dies is redelivered
        task_reject_on_worker_lost=True,  # a killed child's message goes back to the queue
        worker_prefetch_multiplier=1,  # leave messages in the queue for other workers
        task_soft_time_limit=settings.task_seconds,  # raises in the task, which records why it failed
        task_time_limit=limit,  # for a task stuck in native code: its lease then expires
        # Frees the memory of large models by replacing the process, after a task and never during one.
        worker_max_memory_per_child=-(-settings.worker_memory_bytes // KIBIBYTE) or None,
        broker_transport_options={
            **app.conf.broker_transport_options,
            # Longer than the longest task: otherwise Redis redelivers its message while it runs.
            "visibility_timeout": limit + HARD_LIMIT_MARGIN_SECONDS,
        },
        broker_connection_retry=True,  # wait for an unavailable broker
        broker_connection_max_retries=None,  # without limit
        worker_cancel_long_running_tasks_on_connection_loss=False,  # a running batch needs no broker
        worker_hijack_root_logger=False,  # our logs are JSON lines
    )
    open_context = functools.cache(functools.partial(WorkerContext.open, settings, name))

    @app.task(name=FORGET_TASK, shared=False)
    def forget(model_id: str, turn: int | None) -> None:
        serve_doorbell(open_context(), uuid.UUID(model_id), turn)

    @app.task(name=CHECK_TASK, shared=False)
    def check(model_id: str) -> None:
        check_current(open_context(), uuid.UUID(model_id))

    @app.task(name=REFRESH_TASK, shared=False)
    def refresh(model_id: str) -> None:
        refresh_worn(open_context(), uuid.UUID(model_id))

    @app.task(name=PART_TASK, shared=False)
    def train_parts(model_id: str) -> None:
        help_training(open_context(), uuid.UUID(model_id))

    return app


def default_queues() -> Sequence[str]:
    """Return the queues of this machine: the CPU queue, and the CUDA queue if it has a GPU."""
    return [QUEUES[device] for device in Device if device != Device.CUDA or has_cuda()]


def run_worker(settings: Settings, concurrency: int, queues: Sequence[str]) -> None:
    """Serve until SIGTERM. Then finish a batch that ends soon, release one that does not, and exit."""
    # The process that receives SIGTERM releases the batches of its children, so all of them use its name.
    name = process_name()
    GracefulShutdown(settings, name).connect()

    @signals.setup_logging.connect(weak=False)
    def _configure_logs(**_: Any) -> None:
        configure_logging(settings.log_level)

    @signals.worker_process_init.connect(weak=False)
    def _warm_up_child(**_: Any) -> None:
        warm_up()

    create_worker(settings, name).worker_main(
        [
            "--quiet",
            "worker",
            f"--concurrency={concurrency}",
            f"--queues={','.join(queues)}",
            "--without-gossip",
            "--without-mingle",
            "--loglevel=INFO",
        ]
    )
