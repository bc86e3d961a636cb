"""The cases for comparing verifiers: what is genuine is accepted, and what was changed after signing is rejected."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lethe.verify.__main__ import main
from tests.bundle_schema import accepting_other_content
from tests.corpus.cases import Case
from tests.corpus.genuine import genuine_cases
from tests.corpus.mutations import mutated_cases

UNCONFIRMED = {
    "before/absence",
    "fresh/receipt/unlogged",
    "fresh/absence/unlogged",
    "revoked/statements",
    "revoked/statements/witness-after",
    "revoked/log",
    "revoked/log/later",
    "revoked/log/witness-after",
    "revoked/log/later-witness-after",
}
"""Genuine bundles that lack evidence. A later checkpoint under the revoked key itself confirms nothing."""


@pytest.fixture(scope="module")
def mutated() -> list[Case]:
    return list(mutated_cases())


def test_genuine_bundles_are_verified_unless_evidence_is_missing() -> None:
    cases = {case.name: case for case in genuine_cases()}
    assert {name for name, case in cases.items() if case.exit_code == 3} == UNCONFIRMED
    rejected = {name for name, case in cases.items() if case.exit_code == 1}
    assert rejected == {name for name in cases if name.endswith("/unlogged")} - UNCONFIRMED
    assert len(cases) > 100


def test_what_was_changed_after_signing_is_rejected(mutated: list[Case]) -> None:
    changed = [case for case in mutated if case.name.startswith(("bytes/", "members/"))]
    assert len(changed) > 100
    assert {case.name for case in changed if case.exit_code != 1} == set()


def test_mutations_have_every_outcome_and_reach_most_rules(mutated: list[Case]) -> None:
    assert len(mutated) == 1_000
    codes = Counter(case.exit_code for case in mutated)
    assert codes[1] > 500
    assert codes[0] > 100
    assert codes[3] > 10
    assert len({case.verdict[1] for case in mutated}) > 100


def test_the_same_seed_gives_the_same_mutations(mutated: list[Case]) -> None:
    assert list(mutated_cases(50)) == mutated[:50]
    assert list(mutated_cases(50, seed=17)) != mutated[:50]


def test_a_case_is_written_for_a_command_line(mutated: list[Case], tmp_path: Path) -> None:
    with accepting_other_content():
        for number, case in enumerate(mutated[:100]):
            assert main([*case.write(tmp_path / str(number)), "--json"]) == case.exit_code, case.name


@pytest.mark.soak
def test_every_mutation_has_an_outcome() -> None:
    codes = Counter(case.exit_code for case in mutated_cases(5_000, seed=18))
    assert codes.total() == 5_000
    assert set(codes) == {0, 1, 3}
