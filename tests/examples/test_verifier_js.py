"""A second verifier, in JavaScript and written from the documents only, agrees with the reference implementation."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lethe.verify.__main__ import main
from tests.corpus.cases import OUTCOMES, Case
from tests.corpus.edges import edge_cases
from tests.corpus.genuine import genuine_cases
from tests.corpus.mutations import mutated_cases

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "examples" / "verifier-js" / "verify.mjs"
EXAMPLE = ROOT / "docs" / "reference" / "bundle-example"
NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed: get version 20 or later from nodejs.org")


def _run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(NODE), PROGRAM, *arguments], capture_output=True, text=True, timeout=300)


def _verify(cases: Sequence[Case], folder: Path) -> list[dict[str, Any]]:
    """Verify all cases in one process."""
    lines = [json.dumps(case.write(folder / str(number))) for number, case in enumerate(cases)]
    (folder / "cases.ndjson").write_text("\n".join(lines))
    run = _run("--batch", folder / "cases.ndjson")
    assert (run.returncode, run.stderr) == (0, "")
    return [json.loads(line) for line in run.stdout.rstrip("\n").split("\n")]


def _disagreements(cases: Sequence[Case], folder: Path) -> list[tuple[str, tuple[int, str], Any]]:
    results = _verify(cases, folder)
    assert len(results) == len(cases)
    pairs = zip(cases, results, strict=True)
    return [(case.name, case.verdict, result) for case, result in pairs if _outcome(result) != case.exit_code]


def _outcome(result: dict[str, Any]) -> int | None:
    """Return the exit code if the outcome has its documented name."""
    code: int = result["exit_code"]
    return code if OUTCOMES.get(code) == result["outcome"] else None


def test_both_agree_on_genuine_bundles(tmp_path: Path) -> None:
    assert _disagreements(list(genuine_cases()), tmp_path) == []


def test_both_agree_on_1000_mutated_bundles(tmp_path: Path) -> None:
    assert _disagreements(list(mutated_cases()), tmp_path) == []


def test_both_give_the_documented_outcome_at_the_edges(tmp_path: Path) -> None:
    codes, cases = zip(*edge_cases(), strict=True)
    results = _verify(cases, tmp_path)
    for code, case, result in zip(codes, cases, results, strict=True):
        assert (case.exit_code, _outcome(result)) == (code, code), (case.name, case.verdict, result)


@pytest.mark.soak
def test_both_agree_on_5000_other_mutations(tmp_path: Path) -> None:
    assert _disagreements(list(mutated_cases(5_000, seed=19)), tmp_path) == []


def test_the_worked_example_is_verified() -> None:
    keys, later, posterior = (EXAMPLE / name for name in ("keys.json", "later.json", "posterior"))
    run = _run(EXAMPLE / "certificate.json", "--key", keys, "--later", later, "--posterior", posterior)
    assert (run.returncode, run.stdout.splitlines()) == (0, ["certificate for deletion d-1", "verified"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["missing.json", "--key", str(EXAMPLE / "keys.json")],
        [str(EXAMPLE), "--key", str(EXAMPLE / "keys.json")],
        [str(EXAMPLE / "certificate.json"), "--key", "missing.json"],
        [str(EXAMPLE / "keys.json"), "--key", str(EXAMPLE / "keys.json"), "--posterior", "missing"],
        [str(EXAMPLE / "keys.json"), "--key", str(EXAMPLE / "keys.json"), "--later", "missing"],
    ],
)
def test_a_file_that_cannot_be_read_is_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run = _run(*arguments, "--json")
    assert run.returncode == main([*arguments, "--json"]) == 2
    assert json.loads(run.stdout)["outcome"] == json.loads(capsys.readouterr().out)["outcome"] == "unreadable"


@pytest.mark.parametrize("arguments", [[], ["--unknown"], ["bundle.json"]])
def test_a_wrong_command_line_is_code_2_with_the_usage(arguments: list[str]) -> None:
    run = _run(*arguments)
    assert (run.returncode, run.stderr) == (2, "")
    assert "usage: verify.mjs" in run.stdout
