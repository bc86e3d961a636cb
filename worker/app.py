"""The Celery worker: two tasks, each of which answers a doorbell."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Sequence
from typing import Any

from celery import Celery, signals

from ml.numerics.device import has_cuda
from service.logs import configure_logging
from service.settings import Settings
from service.store.batches.doorbell import CHECK_TASK, FORGET_TASK, QUEUES, celery_app
from service.store.states import Device
from worker.context import Workshop, process_name
from worker.forget import answer, warm_up
from worker.readiness import check_current
from worker.shutdown import Leaving

LAST_WORDS_SECONDS = 300.0
"""Between the limit at which a task is asked to end and the one at which its process is killed."""
KIBIBYTE = 1024


def create_worker(settings: Settings, name: str) -> Celery:
    """Nothing here is needed for safety, which is the database's; all of it is for speed of recovery."""
    app = celery_app(settings.broker)
    limit = settings.task_seconds + LAST_WORDS_SECONDS
    app.conf.update(
        task_acks_late=True,  # after the work: a worker that dies has not answered the doorbell
        task_reject_on_worker_lost=True,  # a killed child's message goes back to the queue
        worker_prefetch_multiplier=1,  # nobody sits on messages that another worker could answer
        task_soft_time_limit=settings.task_seconds,  # raises in the task, which writes down why it failed
        task_time_limit=limit,  # for a task that is stuck where nothing can be raised: its lease then runs out
        # What a large model leaves behind goes with its process: after the task, never in its middle.
        worker_max_memory_per_child=-(-settings.worker_memory_bytes // KIBIBYTE) or None,
        broker_transport_options={
            **app.conf.broker_transport_options,
            # Later than the longest task: Redis would hand out its message again while it runs.
            "visibility_timeout": limit + LAST_WORDS_SECONDS,
        },
        broker_connection_retry=True,  # a broker that is away is waited for,
        broker_connection_max_retries=None,  # for as long as it takes,
        worker_cancel_long_running_tasks_on_connection_loss=False,  # while the batch goes on: it needs no broker
        worker_hijack_root_logger=False,  # our logs are JSON lines
    )
    open_workshop = functools.cache(functools.partial(Workshop.open, settings, name))

    @app.task(name=FORGET_TASK, shared=False)
    def forget(model_id: str, turn: int) -> None:
        answer(open_workshop(), uuid.UUID(model_id), turn)

    @app.task(name=CHECK_TASK, shared=False)
    def check(model_id: str) -> None:
        check_current(open_workshop(), uuid.UUID(model_id))

    return app


def queues_served_here() -> Sequence[str]:
    """Any worker serves models that need nothing special; one with a GPU also those that need it."""
    return [QUEUES[device] for device in Device if device != Device.CUDA or has_cuda()]


def run_worker(settings: Settings, concurrency: int, queues: Sequence[str]) -> None:
    """Serve until SIGTERM: finish a batch that ends soon, give back one that does not, then leave."""
    # The process that gets the signal gives back what its children hold, so they all work under its name.
    name = process_name()
    Leaving(settings, name).connect()

    @signals.setup_logging.connect(weak=False)
    def _keep_our_logs(**_: Any) -> None:
        configure_logging(settings.log_level)

    @signals.worker_process_init.connect(weak=False)
    def _first_batch_pays_nothing_extra(**_: Any) -> None:
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
