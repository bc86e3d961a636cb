"""Evidence as a worker hands it to the store, with a bound of the test's choice."""

from __future__ import annotations

from typing import Any

from service.store.certificates.statements import Evidence
from tests.bundles import membership, predicate
from vocabulary.bound import Bound, Rung
from vocabulary.effects import Effects
from vocabulary.levels import CertifiedLevel


def make_evidence(epsilon: float = 1e-8, level: CertifiedLevel = "proved", **bound: Any) -> Evidence:
    members = {**predicate()["bound"], "epsilon": epsilon, "level": level, "epsilon_reverse": 2 * epsilon, **bound}
    shared = {"steps": 1, "at_least": 0.0, "failure": None}
    return Evidence(
        epsilon=epsilon,
        level=level,
        rungs=[
            Rung(name="influence", seconds=0.25, epsilon=1.0, level="none", solver=None, **shared),
            Rung(name="newton", seconds=0.5, epsilon=epsilon, level=level, solver="cholesky", **shared),
        ],
        seconds=0.75,
        bound=Bound.model_validate(members),
        effects=Effects.model_validate({"release": [], "pac_bayes": None, "membership": membership()}),
    )
