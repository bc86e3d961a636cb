"""`lethe demo`: the whole line, for real, with a person watching."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from safetensors.torch import save

import ml
from lethe.client import Client
from lethe.demo.picture import draw
from lethe.verify import Rejected, Verified, verify

SEED = 0
POINTS, PEOPLE = 2000, 200
CONFIG: dict[str, Any] = {"components": 4, "dimensions": 2, "prior_std": 1.0}
EPSILON = 1e-6
START_SECONDS, FORGET_SECONDS = 60.0, 120.0


@dataclass(frozen=True)
class Scene:
    """Data, whose it is, and the model trained on it."""

    points: torch.Tensor
    people: Sequence[Mapping[str, str]]
    family: ml.Family
    start: ml.MeanFieldGaussian
    posterior: ml.MeanFieldGaussian

    def rows_of(self, count: int) -> torch.Tensor:
        """The rows of the first `count` people."""
        return torch.arange(count * (POINTS // PEOPLE))


@dataclass(frozen=True)
class Ending:
    """What the service handed over."""

    certificates: Sequence[bytes]
    keys: bytes
    posterior: bytes


class DemoFailed(Exception):
    """The demo cannot go on; the message says where to look."""


def run_demo(folder: Path, subjects: int, console: Console) -> int:
    """Returns the exit code: 0 only if every certificate holds and the bound is not below the true divergence."""
    data_dir = folder.resolve()
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    try:
        with _service(data_dir) as service, Progress(*columns, console=console) as progress:
            scene = _train(progress)
            _await_ready(service, progress)
            ending = _delete(service, scene, subjects, progress)
    except DemoFailed as reason:
        console.print(f"[bold red]The demo failed:[/bold red] {reason}", highlight=False)
        return 1
    # From here on the service is stopped: nothing but the files it handed over is left.
    final = _verify_offline(ending, console)
    if final is None:
        return 1
    certificate, key = _keep(data_dir, ending, final)
    forgotten = scene.rows_of(subjects)
    seconds_retrain, retrained = _retrain(scene, forgotten)
    after = ml.MeanFieldGaussian.from_bytes(ending.posterior)
    picture = draw(data_dir / "mixture.png", scene.points, forgotten, [scene.posterior, after, retrained])
    true_kl = after.kl(retrained)
    console.print(_table(subjects, final.predicate, scene.posterior.kl(retrained), true_kl, seconds_retrain))
    console.print(
        f"Certificate: {certificate}\nKeys:        {key}\nPicture:     {picture}", highlight=False, soft_wrap=True
    )
    lethe = Path(sys.executable).with_name("lethe")
    console.print(f"Check it yourself: {lethe} verify {certificate} --key {key}", highlight=False, soft_wrap=True)
    return 0 if true_kl <= final.predicate["bound"]["epsilon"] else 1


@dataclass(frozen=True)
class Service:
    url: str
    data_dir: Path
    log_file: Path
    process: subprocess.Popen[bytes]

    def client(self, role: str) -> Client:
        return Client(self.url, (self.data_dir / "tokens" / f"{role}.token").read_text())


@contextmanager
def _service(data_dir: Path) -> Iterator[Service]:
    """`lethe up` as anybody would start it, on a free port, with its logs out of the way."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Embedded, whatever the environment says: a demo must not write into somebody's PostgreSQL.
    env = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
    command = [sys.executable, "-m", "lethe", "up", "--data-dir", str(data_dir), "--port", str(port)]
    log_file = data_dir / "service.log"
    with log_file.open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - our own command
            [*command, "--log-file", str(log_file)], env=env, cwd=data_dir, stdout=log, stderr=log
        )
    try:
        yield Service(f"http://127.0.0.1:{port}", data_dir, log_file, process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _train(progress: Progress) -> Scene:
    task = progress.add_task(f"Training a Gaussian mixture on {POINTS:,} points of {PEOPLE} people", total=None)
    torch.set_num_threads(1)  # as the worker does for data this small, so that the times compare
    points, labels = ml.synthetic_mixture(POINTS, seed=SEED)
    # Each person's points lie together: forgetting a few people then visibly moves the model.
    points = points[torch.argsort(labels * 100 + points[:, 0])].contiguous()
    family = ml.build_family("gaussian-mixture", CONFIG)
    start = family.initial(points, SEED)
    trained = ml.train(family, points, start)
    people = [{"identity_type": "email", "identity_value": f"person-{i:03}@example.org"} for i in range(PEOPLE)]
    progress.update(task, total=1, completed=1)
    return Scene(points, people, family, start, trained.posterior)


def _await_ready(service: Service, progress: Progress) -> None:
    task = progress.add_task("Starting API, worker, sweep, Redis and SQLite", total=None)
    deadline = time.monotonic() + START_SECONDS
    while not _is_ready(service.url):
        if service.process.poll() is not None:
            raise DemoFailed(service.log_file.read_text().splitlines()[-1])
        if time.monotonic() > deadline:
            raise DemoFailed(f"the service did not get ready in {START_SECONDS:.0f} s; {service.log_file} says why")
        time.sleep(0.1)
    progress.update(task, total=1, completed=1)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).is_success
    except httpx.TransportError:
        return False


def _delete(service: Service, scene: Scene, subjects: int, progress: Progress) -> Ending:
    with service.client("engineer") as engineer, service.client("compliance") as compliance:
        model = _register(engineer, scene, progress)
        receipts = _post(compliance, model, scene.people[:subjects], progress)
        certificates = _wait(compliance, receipts, progress)
        return Ending(
            certificates=certificates,
            keys=compliance.keys(),
            posterior=engineer.posterior(model),
        )


def _register(engineer: Client, scene: Scene, progress: Progress) -> str:
    task = progress.add_task("Registering the model over HTTP", total=None)
    manifest = {"name": "demo", "family": "gaussian-mixture", "config": CONFIG, "policy": {"epsilon": EPSILON}}
    rows = [scene.people[row * PEOPLE // POINTS] for row in range(POINTS)]
    model = engineer.register_model(manifest, scene.posterior.to_bytes(), save({"x": scene.points}), rows)
    progress.update(task, total=1, completed=1)
    return str(model["id"])


def _post(
    compliance: Client, model: str, people: Sequence[Mapping[str, str]], progress: Progress
) -> list[dict[str, Any]]:
    task = progress.add_task(f"POSTing {len(people)} deletion requests with idempotency keys", total=len(people))
    receipts = []
    for person in people:
        receipts.append(compliance.delete([person], models=[model], idempotency_key=str(uuid.uuid4())))
        progress.advance(task)
    return receipts


def _wait(compliance: Client, receipts: Sequence[dict[str, Any]], progress: Progress) -> list[bytes]:
    task = progress.add_task("The worker forgets, certifies, erases and publishes", total=len(receipts))
    certificates = []
    for receipt in receipts:
        ended = compliance.wait(receipt["id"], timeout=FORGET_SECONDS)
        if ended["status"] != "completed":
            raise DemoFailed(f"deletion {receipt['id']}: {ended['models'][0]['failure']}")
        certificates.append(compliance.certificate(ended["models"][0]["certificate"]))
        progress.advance(task)
    return certificates


def _verify_offline(ending: Ending, console: Console) -> Verified | None:
    """Check every certificate and the model file; returns the one that speaks of the current version."""
    try:
        found = [verify(content, ending.keys) for content in ending.certificates]
        final = min(found, key=lambda certificate: certificate.predicate["records"]["after"])
        checked = verify(final.content, ending.keys, ending.posterior)
    except Rejected as reason:
        console.print(f"[bold red]rejected[/bold red]: {reason}")
        return None
    for check in checked.checks:
        console.print(f"[green]✓[/green] {check}", highlight=False)
    return checked


def _keep(data_dir: Path, ending: Ending, final: Verified) -> tuple[Path, Path]:
    certificate, key = data_dir / "certificate.json", data_dir / "lethe-keys.json"
    certificate.write_bytes(final.content)
    key.write_bytes(ending.keys)
    (data_dir / "posterior.safetensors").write_bytes(ending.posterior)
    return certificate, key


def _retrain(scene: Scene, forgotten: torch.Tensor) -> tuple[float, ml.MeanFieldGaussian]:
    """From scratch, from the same start, without the forgotten rows: the demo can afford it."""
    kept = torch.ones(POINTS, dtype=torch.bool)
    kept[forgotten] = False
    retained = scene.points[kept]
    started = time.perf_counter()
    trained = ml.train(scene.family, retained, scene.start)
    return time.perf_counter() - started, trained.posterior


def _table(
    subjects: int, predicate: Mapping[str, Any], nothing: float, true_kl: float, seconds_retrain: float
) -> Table:
    table = Table(title="What happened", show_header=False)
    records = predicate["records"]
    table.add_row("subjects removed", f"{subjects} of {PEOPLE}")
    table.add_row("records", f"{records['before']:,} -> {records['after']:,}")
    table.add_row("certified bound (KL)", f"{predicate['bound']['epsilon']:.2e}, level {predicate['bound']['level']}")
    table.add_row("true KL to a retrained model", f"{true_kl:.2e} (doing nothing: {nothing:.2e})")
    table.add_row("time to forget, certificate included", f"{predicate['seconds'] * 1000:.1f} ms")
    table.add_row("time to retrain, without one", f"{seconds_retrain * 1000:.1f} ms")
    table.add_row("verified offline", "yes")
    return table
