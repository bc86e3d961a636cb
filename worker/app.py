"""The Celery worker: two tasks, each of which answers a doorbell."""

from __future__ import annotations

import functools
import uuid
from typing import Any

from celery import Celery, signals

from service.logs import configure_logging
from service.settings import Settings
from service.store.doorbell import CHECK_TASK, FORGET_TASK, celery_app
from worker.check import check_current
from worker.forget import forget_pending, warm_up
from worker.workshop import Workshop


def create_worker(settings: Settings) -> Celery:
    app = celery_app(settings.broker)
    app.conf.update(
        # A message is acknowledged after the work, one is fetched at a time, and a killed child gives its back:
        # none of it is needed for safety (the database is), all of it for speed of recovery.
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        broker_connection_retry=True,
        broker_connection_max_retries=None,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_hijack_root_logger=False,
    )
    open_workshop = functools.cache(functools.partial(Workshop.open, settings))

    @app.task(name=FORGET_TASK)
    def forget(model_id: str) -> None:
        forget_pending(open_workshop(), uuid.UUID(model_id))

    @app.task(name=CHECK_TASK)
    def check(model_id: str) -> None:
        check_current(open_workshop(), uuid.UUID(model_id))

    return app


def run_worker(settings: Settings, concurrency: int) -> None:
    """Serve until SIGTERM (finish the running batch, then leave)."""

    @signals.setup_logging.connect(weak=False)
    def _keep_our_logs(**_: Any) -> None:
        configure_logging(settings.log_level)

    @signals.worker_process_init.connect(weak=False)
    def _first_batch_pays_nothing_extra(**_: Any) -> None:
        warm_up()

    create_worker(settings).worker_main(
        ["--quiet", "worker", f"--concurrency={concurrency}", "--without-gossip", "--without-mingle", "--loglevel=INFO"]
    )
