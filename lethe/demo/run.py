"""`lethe demo`: a deletion from training to a verified certificate, on a real service."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from safetensors.torch import save

import ml
from lethe.client import Client
from lethe.demo.picture import draw
from lethe.demo.service import Service, ServiceFailed, await_ready, run_service
from lethe.verify import Rejected, Verified, verify
from service.settings import make_private_folder

SEED = 0
POINTS, PEOPLE = 2000, 200
CONFIG: dict[str, Any] = {"components": 4, "dimensions": 2, "prior_std": 1.0}
EPSILON = 1e-6
FORGET_SECONDS = 120.0


@dataclass(frozen=True)
class TrainedModel:
    """The data, its owners, and the model trained on it."""

    points: torch.Tensor
    people: Sequence[Mapping[str, str]]
    family: ml.Family
    start: ml.MeanFieldGaussian
    posterior: ml.MeanFieldGaussian

    def rows_of(self, count: int) -> torch.Tensor:
        """Return the rows of the first `count` people."""
        return torch.arange(count * (POINTS // PEOPLE))


@dataclass(frozen=True)
class Downloads:
    """What the service issued: certificates, keys and the current posterior."""

    certificates: Sequence[bytes]
    keys: bytes
    posterior: bytes


class DemoFailed(Exception):
    """The demo cannot go on; the message gives the reason."""


def run_demo(folder: Path, subjects: int, console: Console) -> int:
    """Run the demo and return its exit code: 0 if every certificate is valid and bounds the true divergence."""
    data_dir = folder.resolve()
    make_private_folder(data_dir)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    try:
        with run_service(data_dir) as service, Progress(*columns, console=console) as progress:
            model = _train(progress)
            _await_ready(service, progress)
            downloads = _delete(service, model, subjects, progress)
    except (DemoFailed, ServiceFailed) as reason:
        console.print(f"[bold red]The demo failed:[/bold red] {reason}", highlight=False)
        return 1
    # The service is stopped now; the rest uses only the downloaded files.
    final = _verify_offline(downloads, console)
    if final is None:
        return 1
    certificate, key = _save(data_dir, downloads, final)
    forgotten = model.rows_of(subjects)
    seconds_retrain, retrained = _retrain(model, forgotten)
    after = ml.MeanFieldGaussian.from_bytes(downloads.posterior)
    picture = draw(data_dir / "mixture.png", model.points, forgotten, [model.posterior, after, retrained])
    true_kl = after.kl(retrained)
    console.print(_table(subjects, final.predicate, model.posterior.kl(retrained), true_kl, seconds_retrain))
    console.print(
        f"Certificate: {certificate}\nKeys:        {key}\nPicture:     {picture}", highlight=False, soft_wrap=True
    )
    lethe = Path(sys.executable).with_name("lethe")
    console.print(f"Check it yourself: {lethe} verify {certificate} --key {key}", highlight=False, soft_wrap=True)
    return 0 if true_kl <= final.predicate["bound"]["epsilon"] else 1


def _train(progress: Progress) -> TrainedModel:
    task = progress.add_task(f"Training a Gaussian mixture on {POINTS:,} points of {PEOPLE} people", total=None)
    torch.set_num_threads(1)  # like the worker for data of this size, so that times are comparable
    points, labels = ml.synthetic_mixture(POINTS, seed=SEED)
    # Give each person neighbouring points, so that forgetting a few people visibly moves the model.
    points = points[torch.argsort(labels * 100 + points[:, 0])].contiguous()
    family = ml.build_family("gaussian-mixture", CONFIG)
    start = family.initial(points, SEED)
    trained = ml.train(family, points, start)
    people = [{"identity_type": "email", "identity_value": f"person-{i:03}@example.org"} for i in range(PEOPLE)]
    progress.update(task, total=1, completed=1)
    return TrainedModel(points, people, family, start, trained.posterior)


def _await_ready(service: Service, progress: Progress) -> None:
    task = progress.add_task("Starting API, worker, sweep, Redis and SQLite", total=None)
    await_ready(service)
    progress.update(task, total=1, completed=1)


def _delete(service: Service, model: TrainedModel, subjects: int, progress: Progress) -> Downloads:
    with service.client("engineer") as engineer, service.client("compliance") as compliance:
        model_id = _register(engineer, model, progress)
        receipts = _post(compliance, model_id, model.people[:subjects], progress)
        certificates = _wait(compliance, receipts, progress)
        return Downloads(
            certificates=certificates,
            keys=compliance.keys(),
            posterior=engineer.posterior(model_id),
        )


def _register(engineer: Client, model: TrainedModel, progress: Progress) -> str:
    task = progress.add_task("Registering the model over HTTP", total=None)
    manifest = {"name": "demo", "family": "gaussian-mixture", "config": CONFIG, "policy": {"epsilon": EPSILON}}
    owners = [model.people[row * PEOPLE // POINTS] for row in range(POINTS)]
    posterior, records = model.posterior.to_bytes(), save({"x": model.points})
    registered = engineer.register_model(manifest, posterior, records, owners)
    progress.update(task, total=1, completed=1)
    return str(registered["id"])


def _post(
    compliance: Client, model_id: str, people: Sequence[Mapping[str, str]], progress: Progress
) -> list[dict[str, Any]]:
    task = progress.add_task(f"POSTing {len(people)} deletion requests with idempotency keys", total=len(people))
    receipts = []
    for person in people:
        receipts.append(compliance.delete([person], models=[model_id], idempotency_key=str(uuid.uuid4())))
        progress.advance(task)
    return receipts


def _wait(compliance: Client, receipts: Sequence[dict[str, Any]], progress: Progress) -> list[bytes]:
    task = progress.add_task("The worker forgets, certifies, erases and publishes", total=len(receipts))
    certificates = []
    for receipt in receipts:
        deletion = compliance.wait(receipt["id"], timeout=FORGET_SECONDS)
        if deletion["status"] != "completed":
            raise DemoFailed(f"deletion {receipt['id']}: {deletion['models'][0]['failure']}")
        certificates.append(compliance.certificate(deletion["models"][0]["certificate"]))
        progress.advance(task)
    return certificates


def _verify_offline(downloads: Downloads, console: Console) -> Verified | None:
    """Verify every certificate and the model file; return the certificate of the current version."""
    try:
        certificates = [verify(content, downloads.keys) for content in downloads.certificates]
        final = min(certificates, key=lambda certificate: certificate.predicate["records"]["after"])
        checked = verify(final.content, downloads.keys, downloads.posterior)
    except Rejected as reason:
        console.print(f"[bold red]rejected[/bold red]: {reason}")
        return None
    for check in checked.checks:
        console.print(f"[green]✓[/green] {check}", highlight=False)
    return checked


def _save(data_dir: Path, downloads: Downloads, final: Verified) -> tuple[Path, Path]:
    certificate, key = data_dir / "certificate.json", data_dir / "lethe-keys.json"
    certificate.write_bytes(final.content)
    key.write_bytes(downloads.keys)
    (data_dir / "posterior.safetensors").write_bytes(downloads.posterior)
    return certificate, key


def _retrain(model: TrainedModel, forgotten: torch.Tensor) -> tuple[float, ml.MeanFieldGaussian]:
    """Retrain from the same start without the forgotten rows; return the seconds and the posterior."""
    is_retained = torch.ones(POINTS, dtype=torch.bool)
    is_retained[forgotten] = False
    retained = model.points[is_retained]
    started = time.perf_counter()
    trained = ml.train(model.family, retained, model.start)
    return time.perf_counter() - started, trained.posterior


def _table(
    subjects: int, predicate: Mapping[str, Any], unchanged_kl: float, true_kl: float, seconds_retrain: float
) -> Table:
    table = Table(title="Result", show_header=False)
    records = predicate["records"]
    table.add_row("subjects removed", f"{subjects} of {PEOPLE}")
    table.add_row("records", f"{records['before']:,} -> {records['after']:,}")
    table.add_row("certified bound (KL)", f"{predicate['bound']['epsilon']:.2e}, level {predicate['bound']['level']}")
    table.add_row("true KL to a retrained model", f"{true_kl:.2e} (without forgetting: {unchanged_kl:.2e})")
    table.add_row("time to forget, with bound", f"{predicate['seconds'] * 1000:.1f} ms")
    table.add_row("time to retrain, without bound", f"{seconds_retrain * 1000:.1f} ms")
    table.add_row("verified offline", "yes")
    return table
