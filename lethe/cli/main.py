"""The `lethe` command. Thin: each command imports what it needs when it runs, so that `lethe verify` stays light."""

from __future__ import annotations

import importlib
import importlib.util
import json
import signal
import sys
import threading
import uuid
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lethe.cli import deletions as remote_commands
from lethe.cli import keys as key_commands
from lethe.cli import log as log_commands
from lethe.cli.deletions import ManifestFile, PosteriorFile, RecordsFile
from service.settings import ConfigurationError, load_settings, new_key

if TYPE_CHECKING:
    from service.settings import Settings

TRY, RUN, USE, CHECK, ADMINISTER = "Try it", "Run it", "Use it", "Check it", "Administer it"

app = typer.Typer(
    help="""Lethe makes Bayesian models forget people, and proves it. A tour:

1. [bold]lethe demo[/bold] shows the whole line in a minute, with nothing to install or configure.

2. [bold]lethe up[/bold] runs it for real and leaves a token for each role in .lethe/tokens. The API is at /docs.

3. Register a model, then [bold]lethe delete[/bold] somebody: a worker removes the person and erases the records.

4. Download the certificate and check it offline with [bold]lethe verify[/bold], years later if you like.

5. With DATABASE_URL and REDIS_URL set, [bold]lethe migrate, api, worker, sweep[/bold] run on many hosts.
""",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
)
token = typer.Typer(help="Issue, list and revoke API tokens.", no_args_is_help=True)
model = typer.Typer(help="Check, polish and register models.", no_args_is_help=True)
model.command("register")(remote_commands.register_model)
certificate = typer.Typer(help="Certificates of deletions.", no_args_is_help=True)
certificate.command("get")(remote_commands.get_certificates)
app.add_typer(certificate, name="certificate", rich_help_panel=USE)
app.add_typer(log_commands.log, name="log", rich_help_panel=CHECK)
app.add_typer(token, name="token", rich_help_panel=ADMINISTER)
app.add_typer(key_commands.key, name="key", rich_help_panel=ADMINISTER)
app.add_typer(model, name="model", rich_help_panel=CHECK)
if importlib.util.find_spec("benchmarks"):  # not part of the wheel: a production install does without it
    commands = importlib.import_module("benchmarks.commands")
    app.add_typer(commands.bench, name="bench", rich_help_panel=TRY)
    app.add_typer(commands.paper, name="paper", rich_help_panel=TRY)

out = Console()
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", help="Where the embedded default keeps everything. [default: .lethe]", show_default=False
    ),
]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")]


def main() -> None:
    """Run the command line; what we raise on purpose is told in one line, without a traceback."""
    from lethe.local.embedded_redis import RedisNotFoundError
    from lethe.local.supervisor import AlreadyRunningError

    try:
        app()
    except (ConfigurationError, AlreadyRunningError, RedisNotFoundError) as error:
        Console(stderr=True).print(f"[bold red]lethe:[/bold red] {error}", highlight=False)
        sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        out.print(installed_version("lethe"))
        raise typer.Exit


@app.callback()
def _tour(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command(rich_help_panel=TRY)
def demo(
    data_dir: Annotated[Path, typer.Option(help="Where the demo lives and leaves its files.")] = Path(".lethe/demo"),
    subjects: Annotated[int, typer.Option(min=1, max=40, help="How many of the 200 people ask to be forgotten.")] = 20,
) -> None:
    """Watch a deletion go all the way, and hold a verified certificate at the end.

    Trains a Gaussian mixture on 2,000 points of 200 people, starts the service, posts deletion requests over HTTP,
    waits for the worker, downloads the certificate, verifies it offline and compares it with retraining.
    """
    from lethe.demo.run import run_demo

    raise typer.Exit(run_demo(data_dir, subjects, out))


@app.command(rich_help_panel=RUN)
def up(
    data_dir: DataDir = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    workers: Annotated[int, typer.Option(min=1, help="How many workers to start.")] = 1,
    log_file: Annotated[Path | None, typer.Option(help="Write the logs there instead of to the terminal.")] = None,
) -> None:
    """Run everything here: API, worker and sweep, and in the embedded default Redis; restarts what dies.

    Ctrl-C stops it cleanly. Tokens for each role are in the data folder under tokens/.
    """
    from lethe.local.up import run_up

    settings = _configured(data_dir)
    Console(stderr=True).print(
        f"Lethe at http://{host}:{port} (try /docs). Tokens: {settings.token_dir}. Ctrl-C stops it.", highlight=False
    )
    raise typer.Exit(run_up(settings, host, port, workers, log_file))


@app.command(rich_help_panel=RUN)
def api(data_dir: DataDir = None, host: Host = "127.0.0.1", port: Port = 8000) -> None:
    """Run only the API."""
    import uvicorn

    from service.app import create_app
    from service.logs import configure_logging

    settings = _migrated(data_dir)
    configure_logging(settings.log_level, sees_identities=True)
    uvicorn.run(
        create_app(settings),
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,  # an open stream of events would hold it up for as long as it is read
    )


@app.command(rich_help_panel=RUN)
def worker(
    data_dir: DataDir = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Batches at once in this worker.")] = 1,
    queues: Annotated[
        str | None,
        typer.Option(
            help="Which models to serve, by the device they need: lethe.cpu, lethe.cuda, or both with a comma. With "
            "lethe.cuda alone a worker with a GPU is kept free for models that cannot do without. "
            "[default: lethe.cpu, and lethe.cuda where there is a GPU]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run only a worker; start as many as you like, on any host.

    SIGTERM or Ctrl-C: it finishes a batch that ends within LETHE_SHUTDOWN_SECONDS and gives back one that does not.
    """
    from service.store.batches.doorbell import QUEUES
    from worker.app import default_queues, run_worker

    chosen = default_queues() if queues is None else queues.split(",")
    if not set(chosen) <= set(QUEUES.values()):
        raise typer.BadParameter(f"choose some of {', '.join(QUEUES.values())}", param_hint="--queues")
    run_worker(_migrated(data_dir), concurrency, chosen)


@app.command(rich_help_panel=RUN)
def sweep(data_dir: DataDir = None) -> None:
    """Run only the sweep: rings again for waiting work, destroys what is due, sends callbacks. Two do no harm."""
    from worker.sweep import run_sweep

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    run_sweep(_migrated(data_dir), stop)


app.command(rich_help_panel=USE)(remote_commands.delete)
app.command(rich_help_panel=USE)(remote_commands.status)


@app.command(rich_help_panel=CHECK)
def verify(
    bundle: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A receipt or certificate (.json).")],
    key: Annotated[
        Path, typer.Option(exists=True, dir_okay=False, help="Lethe's list of keys (.json), or a public key (.pem).")
    ],
    posterior: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="The model file it speaks of, to check it too.")
    ] = None,
    later: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="A later checkpoint with its proof, from /api/v1/log/proof/consistency: was the log rewritten since?",
        ),
    ] = None,
    witness: Annotated[
        list[str] | None, typer.Option(help="The key (name+hash+key) of a witness that must have cosigned; repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Check a receipt or certificate offline.

    Exits with 0 if it holds, 1 if it does not, 2 if a file cannot be read. `lethe verifier` writes the same check into
    one file, for those who do not want to install Lethe.
    """
    from lethe.verify import Rejected
    from lethe.verify import verify as check

    files = [path.read_bytes() if path else None for path in (posterior, later)]
    try:
        found = check(bundle.read_bytes(), key.read_bytes(), files[0], files[1], witness or ())
    except Rejected as reason:
        _tell({"verified": False, "reason": str(reason)}, [f"[bold red]rejected[/bold red]: {reason}"], as_json)
        raise typer.Exit(1) from None
    lines = [f"[green]✓[/green] {check}" for check in found.checks]
    lines += [f"[yellow]not proved[/yellow]: {sentence}" for sentence in found.not_proved]
    _tell(found.facts(), [*lines, "[bold green]verified[/bold green]"], as_json)


@app.command(rich_help_panel=CHECK)
def verifier(
    file: Annotated[Path, typer.Argument(dir_okay=False, help="Where to write it.")] = Path("lethe-verify.pyz"),
) -> None:
    """Write the verifier as one file that needs only Python and `cryptography`: hand it to an auditor.

    python lethe-verify.pyz certificate.json --key lethe-keys.json
    """
    from lethe.verifier_archive import write_verifier

    write_verifier(file)
    out.print(f"python {file} CERTIFICATE --key KEYS", highlight=False, soft_wrap=True)


@app.command(rich_help_panel=ADMINISTER)
def migrate(data_dir: DataDir = None) -> None:
    """Bring the database to this version's schema. `lethe up` does it by itself."""
    from lethe.local.up import prepare

    prepare(_configured(data_dir))
    out.print("The database is up to date.")


@app.command(rich_help_panel=ADMINISTER)
def secrets() -> None:
    """Print fresh secrets, as lines for an environment file."""
    for variable in ("LETHE_IDENTITY_KEY", "LETHE_SIGNING_KEY"):
        out.print(f"{variable}={new_key()}", highlight=False)


@model.command("check")
def model_check(
    manifest: ManifestFile,
    posterior: PosteriorFile,
    records: RecordsFile,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """How converged a posterior is, which certificate levels it can reach, and what to do to reach a better one.

    Exits with 0 if it is ready, 1 if something would help, 2 if a file does not fit.
    """
    from lethe.cli.models import ModelFiles
    from ml.errors import ForgettingError

    try:
        found = ModelFiles.read(manifest, posterior, records).check()
    except ForgettingError as error:
        raise typer.BadParameter(str(error)) from None
    reached = ", ".join(found.levels) or "none but by retraining"
    lines = [*found.findings, f"certificate levels: [bold]{reached}[/bold]"]
    lines += [f"[yellow]to do[/yellow]: {advice}" for advice in found.advice]
    _tell(found.to_dict(), lines, as_json)
    raise typer.Exit(0 if found.ready else 1)


@model.command("polish")
def model_polish(
    manifest: ManifestFile,
    posterior: PosteriorFile,
    records: RecordsFile,
    polished: Annotated[Path, typer.Option("--out", help="Where to write the converged posterior.")] = Path(
        "polished.safetensors"
    ),
) -> None:
    """Bring a posterior to the optimum of its basin, so that every certificate level is in reach."""
    from lethe.cli.models import ModelFiles
    from ml.errors import ForgettingError

    try:
        files = ModelFiles.read(manifest, posterior, records)
        with Console(stderr=True).status("polishing") as status:
            found = files.polish(lambda step: status.update(f"polishing: step {step}"))
    except ForgettingError as error:
        raise typer.BadParameter(str(error)) from None
    polished.write_bytes(found.to_bytes())
    out.print(f"Written to {polished}. Check it with `lethe model check`, then register it.", highlight=False)


@token.command("issue")
def token_issue(
    role: Annotated[str, typer.Option(help="compliance, operator, auditor or engineer.")],
    name: Annotated[str, typer.Option(help="Who will use it: deletions and idempotency keys belong to this name.")],
    data_dir: DataDir = None,
) -> None:
    """Make a token. It is shown once and stored only as a hash."""
    from service.store.access.tokens import issue_token
    from service.store.states import Role

    if role not in list(Role):
        raise typer.BadParameter(f"choose one of {', '.join(Role)}", param_hint="--role")
    with _database(data_dir).writing() as session:
        secret = issue_token(session, name, Role(role), actor="lethe token issue")
    out.print(secret, highlight=False, soft_wrap=True)


@token.command("list")
def token_list(data_dir: DataDir = None) -> None:
    """Show all tokens, without their secrets."""
    from service.store.access.tokens import list_tokens

    table = Table("id", "name", "role", "issued", "revoked")
    with _database(data_dir).reading() as session:
        for row in list_tokens(session):
            revoked = row.revoked_at.isoformat(timespec="seconds") if row.revoked_at else ""
            table.add_row(str(row.id), row.caller, row.role, row.created_at.isoformat(timespec="seconds"), revoked)
    out.print(table)


@token.command("revoke")
def token_revoke(token_id: uuid.UUID, data_dir: DataDir = None) -> None:
    """Make a token useless from now on."""
    from service.store.access.tokens import revoke_token
    from service.store.errors import NotFound

    try:
        with _database(data_dir).writing() as session:
            revoke_token(session, token_id, actor="lethe token revoke")
    except NotFound as error:
        raise typer.BadParameter(str(error)) from None
    out.print("Revoked.")


def _configured(data_dir: Path | None) -> Settings:
    from service.logs import configure_logging

    settings = load_settings(data_dir)
    configure_logging(settings.log_level)
    return settings


def _migrated(data_dir: Path | None) -> Settings:
    """Settings whose database has our schema and whose key may sign: a part that starts too early says so and is
    started again."""
    from service.store.database import Database
    from service.store.migrate import is_current
    from service.store.signing.keys import open_signer

    settings = _configured(data_dir)
    database = Database(settings.database)
    if not is_current(database):
        raise ConfigurationError("the database does not have this version's schema: run `lethe migrate` first.")
    open_signer(settings, database)
    database.close()
    return settings


def _database(data_dir: Path | None) -> Any:
    from service.store.database import Database

    return Database(load_settings(data_dir).database)


def _tell(facts: dict[str, Any], lines: list[Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        for line in lines:
            out.print(line, highlight=False)
