"""`lethe bench people`: random people forgotten from a network's sample set by a running service.

    mlp            exact draws of a perceptron on digits, certified against the posterior
    lenet-sgld     SGLD on Fashion-MNIST, certified against the law of the stored draws
    lenet-sghmc    the same by SGHMC

Each row is a person. Each group is forgotten from a model of its own, registered with the same draws over HTTP under
`lethe up`, by weights alone: what they do not carry is refused and counts. Processor time is that of the worker, from
the request to the published certificate, against that of sampling anew. Predictions on the forgotten rows are compared
with two sample sets that never saw them; those of LeNet-5 are of shorter chains, and without the people of all groups.

The truth of an exact case is E_R log(1 + (w-1)/N), which bounds KL(reference ‖ a draw picked by its weight), over draws
of the posterior given the retained rows. There w = Z e^(-s), s = log p(S' | θ), Z = E_R e^s: E_S e^(-s) = 1/E_R e^s.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch
from rich.table import Table
from safetensors.torch import save
from torch import Tensor

from benchmarks.datasets.digits import digits
from benchmarks.datasets.fashion_mnist import fashion_mnist
from benchmarks.timing import timed
from lethe.demo.service import Service, await_ready, run_service
from lethe.progress import OnProgress, stages
from lethe.verify import verify
from ml.errors import InvalidInput
from ml.forgetting.retained import retained_rows
from ml.inference.chains import LONG_BNN_SGHMC, LONG_BNN_SGLD, Chains
from ml.inference.function_mixing import row_log_likelihoods
from ml.inference.network_chains import configure, sample_network
from ml.models.lenet import LeNet5
from ml.models.mlp import MLP
from ml.models.network import Network
from ml.posteriors.sample_set import SampleSet
from vocabulary.references import Reference

CASES = ("mlp", "lenet-sgld", "lenet-sghmc")
_PERCEPTRON: Mapping[str, Any] = {"dimensions": 64, "hidden": 32, "classes": 10, "prior_std": 0.15}
_LENET: Mapping[str, Any] = {"prior_std": 0.04, "activation": "tanh"}
"""A narrow prior and smooth units: chains mix sooner (docs/decisions/0006)."""
_ORDER_SEED = 17
_EPSILON = 1.0
_SERVICE_SECONDS = 900.0
_ORIGINAL_SEED, _SEEDS = 1, (2, 3)
"""Seed of the stored draws, and of the two sets without the forgotten rows."""


@dataclass(frozen=True, eq=False)
class Case:
    """A network with its rows and chains, and the sizes of the groups to forget, in each of some rounds.

    `exact` has sets without each group drawn, by the same chains, which give the truth. Otherwise all groups are
    compared with sets of the chains `without`, which saw nobody of any group.
    """

    name: str
    family: str
    config: Mapping[str, Any]
    network: Network
    rows: Tensor
    chains: Chains
    without: Chains
    sizes: tuple[int, ...]
    rounds: int
    reference: Reference
    exact: bool

    @property
    def everybody(self) -> int:
        """Number of people in all groups."""
        return self.rounds * self.sizes[-1]

    def forgotten(self, size: int, number: int = 0) -> Tensor:
        """Return the positions of random people. Within a round, larger groups contain the smaller ones."""
        order = torch.randperm(len(self.rows), generator=torch.Generator().manual_seed(_ORDER_SEED))
        return order[number * self.sizes[-1] :][:size]

    @property
    def manifest(self) -> dict[str, Any]:
        policy = {"epsilon": _EPSILON, "level": "estimated", "rungs": ["reweight"], "reference": self.reference}
        kind = {"family": self.family, "posterior": "samples", "config": dict(self.config)}
        return {"name": self.name, **kind, "policy": policy}


@dataclass(frozen=True)
class Draws:
    """Sample set with its processor seconds and diagnostics."""

    sample_set: SampleSet
    seconds: float
    diagnostics: dict[str, Any]


@dataclass(frozen=True)
class Forgotten:
    """One group: what the certificate says, what it cost, and the loss on the forgotten rows in nats per row.

    `refused` is the reason if there is no certificate.
    """

    people: int
    number: int
    worker_seconds: float
    loss_before: float
    losses_without: tuple[float, ...]
    refused: str | None = None
    level: str | None = None
    reference: str | None = None
    epsilon: float | None = None
    undetectable: float | None = None
    truth: float | None = None
    relative_ess: float | None = None
    k_hat: float | None = None
    independent_draws: float | None = None
    loss_after: float | None = None


def build_case(name: str, data: Path | None) -> Case:
    """Return the case of that name."""
    if name == "mlp":
        network, rows = MLP(**_PERCEPTRON), digits()[0].float()
        chains = configure(network, len(rows))
        return Case(name, "mlp", _PERCEPTRON, network, rows, chains, chains, (1, 4), 1, "posterior", exact=True)
    if name in CASES:
        chains = LONG_BNN_SGLD if name == "lenet-sgld" else LONG_BNN_SGHMC
        shorter, rows = replace(chains, iterations=4_000, thinning=16), fashion_mnist(True, data)
        sizes = (1, 4, 16)
        lenet = LeNet5(**_LENET)
        return Case(name, "lenet5", _LENET, lenet, rows, chains, shorter, sizes, 3, "stored draws", exact=False)
    raise InvalidInput(f"unknown case {name!r}: choose among {', '.join(CASES)}")


def bench_people(names: Sequence[str], folder: Path, data: Path | None) -> list[dict[str, Any]]:
    """Draw what is not in the folder yet, forget each group by a service, and compare."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    cases = [build_case(name, data) for name in names]
    with stages() as bar:
        return [_measure(case, folder, bar(case.name)) for case in cases]


def people_table(case: dict[str, Any]) -> Table:
    mixing = case["diagnostics"]["functions"]
    table = Table(
        title=f"{case['case']}: {case['draws']} draws in {case['sampling_seconds']:.0f} s of processor time, "
        f"R-hat of the panel {mixing['r_hat']:.3f}"
    )
    for column in ("people", "epsilon", "undetectable", "truth", "ESS/N", "k-hat", "worker s", "of sampling"):
        table.add_column(column, justify="right")
    for column in ("loss before", "after", "never seen"):
        table.add_column(column, justify="right")
    for group in case["groups"]:
        cost = f"1/{case['sampling_seconds'] / group['worker_seconds']:.0f}"
        table.add_row(
            str(group["people"]),
            "refused" if group["refused"] else f"{group['epsilon']:.3g}",
            *(_number(group[name]) for name in ("undetectable", "truth", "relative_ess", "k_hat", "worker_seconds")),
            cost,
            *(_number(group[name]) for name in ("loss_before", "loss_after")),
            ", ".join(_number(loss) for loss in group["losses_without"]),
        )
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def draw_sets(case: Case, folder: Path, on_progress: OnProgress) -> dict[tuple[int, int], Draws]:
    """Return the sample set without so many people by a seed, for each of those; stored ones are not drawn again."""
    sizes = case.sizes if case.exact else (case.everybody,)
    wanted = [(0, _ORIGINAL_SEED), *((size, seed) for size in sizes for seed in _SEEDS)]
    return {(size, seed): _draw(case, size, seed, folder, on_progress) for size, seed in wanted}


def _draw(case: Case, size: int, seed: int, folder: Path, on_progress: OnProgress) -> Draws:
    file = folder / f"{case.name}-without{size}-seed{seed}.safetensors"
    facts = file.with_suffix(".json")
    if not facts.exists():
        rows = retained_rows(case.rows, case.forgotten(size)) if size else case.rows
        generator, chains = torch.Generator().manual_seed(seed), case.without if size else case.chains

        def report(iteration: int, _: float) -> None:
            on_progress(f"sampling without {size}", iteration / chains.iterations)

        seconds, sampled = timed(lambda: sample_network(case.network, rows, generator, report, chains))
        file.write_bytes(sampled.sample_set.to_bytes())
        # Written last: a set without this file is incomplete and is drawn again.
        facts.write_text(json.dumps({"seconds": seconds, "diagnostics": asdict(sampled.diagnostics)}))
    stored = json.loads(facts.read_text())
    return Draws(SampleSet.from_bytes(file.read_bytes()), stored["seconds"], stored["diagnostics"])


def _measure(case: Case, folder: Path, on_progress: OnProgress) -> dict[str, Any]:
    drawn = draw_sets(case, folder, on_progress)
    before = drawn[0, _ORIGINAL_SEED]
    # No refreshes: the worker's time is to be that of deletions alone.
    with TemporaryDirectory() as data_dir, run_service(Path(data_dir), {"LETHE_REFRESH_BELOW": "0"}) as service:
        await_ready(service)
        groups = [asdict(group) for group in _forget_groups(service, case, drawn, on_progress)]
    on_progress("done", 1.0)
    return {
        "case": case.name,
        "draws": len(before.sample_set.samples),
        "sampling_seconds": before.seconds,
        "diagnostics": before.diagnostics,
        "groups": groups,
    }


def _forget_groups(
    service: Service, case: Case, drawn: dict[tuple[int, int], Draws], on_progress: OnProgress
) -> Iterator[Forgotten]:
    before = drawn[0, _ORIGINAL_SEED].sample_set
    for number, size in itertools.product(range(case.rounds), case.sizes):
        on_progress(f"forgetting {size}", number / case.rounds)
        forgotten = case.forgotten(size, number)
        rows = case.rows[forgotten]
        without = [drawn[size if case.exact else case.everybody, seed].sample_set for seed in _SEEDS]
        group = Forgotten(
            people=size,
            number=number,
            worker_seconds=math.nan,
            loss_before=_loss(case.network, before, rows),
            losses_without=tuple(_loss(case.network, other, rows) for other in without),
        )
        deletion = _forget_by_service(service, case, before, forgotten)
        group = replace(group, worker_seconds=deletion.worker_seconds, refused=deletion.failure)
        if deletion.certified is not None:
            group = replace(group, **_describe(deletion.certified, case.network, rows, without if case.exact else None))
        yield group


@dataclass(frozen=True, eq=False)
class Certified:
    """What a certificate states, and the posterior that it is about."""

    predicate: Mapping[str, Any]
    posterior: SampleSet


@dataclass(frozen=True, eq=False)
class Deletion:
    """A deletion by the service: certified, or why it failed."""

    worker_seconds: float
    failure: str | None
    certified: Certified | None = None


def _describe(
    certified: Certified, network: Network, rows: Tensor, exact: Sequence[SampleSet] | None
) -> dict[str, Any]:
    """Return what the certificate says, and the truth if there are exact draws without the rows."""
    bound = certified.predicate["bound"]
    constants = bound["constants"]
    names = ("undetectable", "relative_ess", "k_hat", "independent_draws")
    return {
        "level": bound["level"],
        "reference": bound["reference_kind"],
        "epsilon": bound["epsilon"],
        **{name: constants[name] for name in names},
        "truth": None if exact is None else _truth(network, exact, rows, constants["independent_draws"]),
        "loss_after": _loss(network, certified.posterior, rows),
    }


def _forget_by_service(service: Service, case: Case, before: SampleSet, forgotten: Tensor) -> Deletion:
    """Register the draws, delete the people, and verify the certificate."""
    people = [{"identity_type": "customer_id", "identity_value": f"person-{row}"} for row in range(len(case.rows))]
    with service.client("engineer") as engineer, service.client("compliance") as compliance:
        records = save({"x": case.rows})
        model_id = engineer.register_model(case.manifest, before.to_bytes(), records, people)["id"]
        engineer.readiness(model_id, timeout=_SERVICE_SECONDS)
        started = _worker_seconds(service)
        subjects = [people[row] for row in forgotten.tolist()]
        deletion = compliance.wait(compliance.delete(subjects, models=[model_id])["id"], timeout=_SERVICE_SECONDS)
        seconds = _worker_seconds(service) - started
        (target,) = deletion["models"]
        if deletion["status"] != "completed":
            return Deletion(seconds, target["failure"])
        posterior = engineer.posterior(model_id)
        verified = verify(compliance.certificate(target["certificate"]), compliance.keys(), posterior)
    return Deletion(seconds, None, Certified(verified.predicate, SampleSet.from_bytes(posterior)))


def _worker_seconds(service: Service) -> float:
    """Return the processor time of the worker and its children so far, those included that it has replaced."""
    pid = json.loads((service.data_dir / "processes.json").read_text())["worker-1"]["pid"]
    worker = psutil.Process(pid)
    times = [process.cpu_times() for process in (worker, *worker.children(recursive=True))]
    ended = times[0].children_user + times[0].children_system
    return float(ended + sum(time.user + time.system for time in times))


def _loss(network: Network, sample_set: SampleSet, rows: Tensor) -> float:
    """Return -log of the predicted probability of the labels, averaged over rows; predictions are over draws."""
    log_likelihoods = row_log_likelihoods(network, sample_set.samples, rows)
    return -float(torch.logsumexp(log_likelihoods + sample_set.weights.log().unsqueeze(1), 0).mean())


def _truth(network: Network, without: Sequence[SampleSet], rows: Tensor, independent_draws: float) -> float:
    samples = torch.cat([sample_set.samples for sample_set in without])
    s = row_log_likelihoods(network, samples, rows).sum(1)
    log_z = torch.logsumexp(s, 0) - math.log(len(s))
    return float(torch.log1p(((log_z - s).exp() - 1) / independent_draws).mean())
