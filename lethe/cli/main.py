"""The `lethe` command, composed of the command modules.

Commands import what they need when they run, so that `lethe verify` starts without torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.metadata import version as installed_version
from typing import Annotated

import typer

from lethe.cli import checked_secrets, deletions, processes, verification
from lethe.cli.keys import keys, print_secrets
from lethe.cli.log import log
from lethe.cli.output import out, print_note
from lethe.cli.registration import models
from lethe.cli.reissue import reissue
from lethe.cli.tokens import tokens
from lethe.cli.training import training
from service.settings import ConfigurationError

TRY, RUN, USE, CHECK, ADMINISTER = "Try it", "Run it", "Use it", "Check it", "Administer it"

app = typer.Typer(
    help="""Lethe makes Bayesian models forget people, and proves it. A tour:

1. [bold]lethe demo[/bold] runs a deletion from training to certificate in a minute. It needs no configuration.

2. [bold]lethe up[/bold] runs the service and leaves a token for each role in .lethe/tokens. The API is at /docs.

3. Register a model, then [bold]lethe delete[/bold] a person: a worker removes the person and erases the records.

4. Download the certificate and check it offline with [bold]lethe verify[/bold], even years later.

5. With DATABASE_URL and REDIS_URL set, [bold]lethe migrate, api, worker, sweep[/bold] run on many hosts.
""",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
)
app.command(rich_help_panel=TRY)(processes.demo)
for process in (processes.up, processes.api, processes.worker, processes.sweep):
    app.command(rich_help_panel=RUN)(process)
app.command(rich_help_panel=USE)(deletions.delete)
app.command(rich_help_panel=USE)(deletions.status)
app.command(rich_help_panel=CHECK)(verification.verify)
app.command(rich_help_panel=CHECK)(verification.verifier)
app.command(rich_help_panel=ADMINISTER)(processes.migrate)
app.command("secrets", rich_help_panel=ADMINISTER)(print_secrets)

certificates = typer.Typer(help="Certificates of deletions.", no_args_is_help=True)
certificates.command("get")(deletions.get_certificates)
certificates.command("reissue")(reissue)
app.add_typer(certificates, name="certificate", rich_help_panel=USE)
app.add_typer(log, name="log", rich_help_panel=CHECK)
app.add_typer(models, name="model", rich_help_panel=CHECK)
app.add_typer(training, name="train", rich_help_panel=USE)
app.add_typer(tokens, name="token", rich_help_panel=ADMINISTER)
keys.command("rotate-identity")(checked_secrets.rotate_identity)
keys.command("accept-opendsr")(checked_secrets.accept_opendsr)
app.add_typer(keys, name="key", rich_help_panel=ADMINISTER)
if importlib.util.find_spec("benchmarks"):  # not part of the wheel: a production install does not need it
    benchmarks = importlib.import_module("benchmarks.commands")
    app.add_typer(benchmarks.bench, name="bench", rich_help_panel=TRY)
    app.add_typer(benchmarks.paper, name="paper", rich_help_panel=TRY)


def main() -> None:
    """Run the command line. Expected errors are printed in one line, without a traceback."""
    from lethe.local.embedded_redis import RedisNotFoundError
    from lethe.local.supervisor import AlreadyRunningError

    try:
        app()
    except (ConfigurationError, AlreadyRunningError, RedisNotFoundError) as error:
        print_note(f"[bold red]lethe:[/bold red] {error}")
        sys.exit(2)


def _print_version(requested: bool) -> None:
    if requested:
        out.print(installed_version("lethe"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
