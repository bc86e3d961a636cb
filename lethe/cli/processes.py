"""Commands that run Lethe's processes: `demo`, `up`, `api`, `worker`, `sweep` and `migrate`."""

from __future__ import annotations

import gc
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from lethe.cli.options import DataDir
from lethe.cli.output import out, print_note
from lethe.cli.store import load_logged_settings, load_ready_settings

Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")]


def demo(
    data_dir: Annotated[Path, typer.Option(help="Folder for the demo's data and results.")] = Path(".lethe/demo"),
    subjects: Annotated[int, typer.Option(min=1, max=40, help="Number of people, of 200, to forget.")] = 20,
) -> None:
    """Run a deletion from training to a verified certificate.

    Trains a Gaussian mixture on 2,000 points of 200 people, starts the service, posts deletion requests over HTTP,
    waits for the worker, downloads the certificate, verifies it offline and compares it with retraining.
    """
    from lethe.demo.run import run_demo

    raise typer.Exit(run_demo(data_dir, subjects, out))


def up(
    data_dir: DataDir = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    workers: Annotated[int, typer.Option(min=1, help="Number of workers.")] = 1,
    log_file: Annotated[Path | None, typer.Option(help="Write the logs to this file, not to the terminal.")] = None,
) -> None:
    """Run everything on this machine: API, workers and sweep, and Redis in the embedded default.

    A process that dies is restarted. Ctrl-C stops all of them. The data folder has a token for each role under tokens/.
    """
    from lethe.local.up import run_up

    settings = load_logged_settings(data_dir)
    print_note(f"Lethe at http://{host}:{port} (try /docs). Tokens: {settings.token_dir}. Ctrl-C stops it.")
    raise typer.Exit(run_up(settings, host, port, workers, log_file))


def api(data_dir: DataDir = None, host: Host = "127.0.0.1", port: Port = 8000) -> None:
    """Run only the API."""
    import uvicorn

    from service.app import create_app, prepare_routes
    from service.http.server import server_config
    from service.logs import configure_logging

    settings = load_ready_settings(data_dir, speaks_opendsr=True)
    configure_logging(settings.log_level, sees_identities=True)
    app = create_app(settings)
    prepare_routes(app)
    server = uvicorn.Server(server_config(app, settings, host, port))
    gc.freeze()  # garbage collections need not look at the modules again
    server.run()


def worker(
    data_dir: DataDir = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Number of batches processed at the same time.")] = 1,
    queues: Annotated[
        str | None,
        typer.Option(
            help="Queues to serve, separated by commas: lethe.cpu, lethe.cuda. With lethe.cuda alone, a worker with a "
            "GPU is reserved for models that need one. "
            "[default: lethe.cpu, and lethe.cuda where there is a GPU]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run one worker. Start as many as you like, on any host.

    On SIGTERM or Ctrl-C it finishes a batch that ends within LETHE_SHUTDOWN_SECONDS and releases any other.
    """
    from service.store.batches.doorbell import QUEUES
    from worker.app import default_queues, run_worker

    served = default_queues() if queues is None else queues.split(",")
    if not set(served) <= set(QUEUES.values()):
        raise typer.BadParameter(f"choose some of {', '.join(QUEUES.values())}", param_hint="--queues")
    run_worker(load_ready_settings(data_dir), concurrency, served)


def sweep(data_dir: DataDir = None) -> None:
    """Run only the sweep: wakes workers for waiting deletions, destroys due artifacts, sends callbacks.

    Several may run at once.
    """
    from worker.sweep import run_sweep

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    run_sweep(load_ready_settings(data_dir, speaks_opendsr=True), stop)


def migrate(data_dir: DataDir = None) -> None:
    """Upgrade the database to this version's schema. `lethe up` does so by itself."""
    from lethe.local.up import prepare

    prepare(load_logged_settings(data_dir))
    out.print("The database is up to date.")
