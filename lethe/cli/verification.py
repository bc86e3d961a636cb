"""`lethe verify` and `lethe verifier`: offline checks of receipts and certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from lethe.cli.options import AsJson
from lethe.cli.output import out, print_result

COLOURS = {0: "bold green", 1: "bold red", 2: "bold red", 3: "bold yellow"}


def verify(
    bundle: Annotated[Path, typer.Argument(help="A receipt or certificate (.json).")],
    key: Annotated[Path, typer.Option(help="Lethe's list of keys (.json), or a public key (.pem).")],
    posterior: Annotated[
        Path | None, typer.Option(help="The model file that the certificate names; checked by digest.")
    ] = None,
    later: Annotated[
        Path | None,
        typer.Option(
            help="A later checkpoint with its proof, from /api/v1/log/proof/consistency: shows that the log was not "
            "rewritten since."
        ),
    ] = None,
    witness: Annotated[
        list[str] | None, typer.Option(help="Key (name+hash+key) of a witness that must have cosigned; repeatable.")
    ] = None,
    origin: Annotated[
        str | None, typer.Option(help="Name of the log. A list of keys tells it, a public key alone does not.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify a receipt or certificate offline.

    Exits with 0 if it is valid, 1 if it is not, 2 if a file cannot be read, 3 if nothing is wrong but evidence is
    missing; the last line says which. `lethe verifier` writes the same check into a single file, for people who do not
    install Lethe.
    """
    from lethe.verify.files import printable, verify_files, write_ending

    code, facts = verify_files(bundle, key, posterior, later, witness or (), origin)
    lines = [f"[green]✓[/green] {escape(printable(check))}" for check in facts.get("checks", ())]
    lines += [f"[yellow]not proved[/yellow]: {escape(printable(line))}" for line in facts.get("not_proved", ())]
    ending, reason = write_ending(code, facts)
    print_result(facts, [*lines, f"[{COLOURS[code]}]{ending}[/{COLOURS[code]}]{escape(reason)}"], as_json)
    raise typer.Exit(code)


def verifier(
    file: Annotated[Path, typer.Argument(dir_okay=False, help="File to write.")] = Path("lethe-verify.pyz"),
) -> None:
    """Write the verifier as a single file for auditors. It needs only Python and `cryptography`.

    python lethe-verify.pyz certificate.json --key lethe-keys.json
    """
    from lethe.verifier_archive import write_verifier

    write_verifier(file)
    out.print(f"python {file} CERTIFICATE --key KEYS", highlight=False, soft_wrap=True)
