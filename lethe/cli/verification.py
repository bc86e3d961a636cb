"""`lethe verify` and `lethe verifier`: offline checks of receipts and certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lethe.cli.options import AsJson
from lethe.cli.output import out, print_result


def verify(
    bundle: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A receipt or certificate (.json).")],
    key: Annotated[
        Path, typer.Option(exists=True, dir_okay=False, help="Lethe's list of keys (.json), or a public key (.pem).")
    ],
    posterior: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="The model file that the certificate names; checked by digest."),
    ] = None,
    later: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="A later checkpoint with its proof, from /api/v1/log/proof/consistency: shows that the log was not "
            "rewritten since.",
        ),
    ] = None,
    witness: Annotated[
        list[str] | None, typer.Option(help="Key (name+hash+key) of a witness that must have cosigned; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify a receipt or certificate offline.

    Exits with 0 if it is valid, 1 if it is not, 2 if a file cannot be read. `lethe verifier` writes the same check into
    a single file, for people who do not install Lethe.
    """
    from lethe.verify import Rejected
    from lethe.verify import verify as verify_bundle

    files = [path.read_bytes() if path else None for path in (posterior, later)]
    try:
        verified = verify_bundle(bundle.read_bytes(), key.read_bytes(), files[0], files[1], witness or ())
    except Rejected as reason:
        print_result({"verified": False, "reason": str(reason)}, [f"[bold red]rejected[/bold red]: {reason}"], as_json)
        raise typer.Exit(1) from None
    lines = [f"[green]✓[/green] {check}" for check in verified.checks]
    lines += [f"[yellow]not proved[/yellow]: {sentence}" for sentence in verified.not_proved]
    print_result(verified.facts(), [*lines, "[bold green]verified[/bold green]"], as_json)


def verifier(
    file: Annotated[Path, typer.Argument(dir_okay=False, help="File to write.")] = Path("lethe-verify.pyz"),
) -> None:
    """Write the verifier as a single file for auditors. It needs only Python and `cryptography`.

    python lethe-verify.pyz certificate.json --key lethe-keys.json
    """
    from lethe.verifier_archive import write_verifier

    write_verifier(file)
    out.print(f"python {file} CERTIFICATE --key KEYS", highlight=False, soft_wrap=True)
