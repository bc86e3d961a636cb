from __future__ import annotations

import pytest
import torch

from benchmarks.certificates import sabotage
from benchmarks.certificates.sabotage import NOT_POSTERIOR, QUICK, WORTHLESS, bench_sabotage


@pytest.mark.soak
def test_no_nonsense_set_of_a_regression_is_certified_and_right_draws_are() -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(2):
        draws = sabotage._regression_draws(generator)
        assert sabotage._is_certified(draws, draws.right, "posterior")
        trials = [
            trial
            for kind in (*WORTHLESS, *NOT_POSTERIOR)
            for trial in sabotage._judge("logistic", kind, draws, generator)
        ]
        assert [trial.kind for trial in trials if trial.certified] == []
        assert len(trials) == 2 * len(WORTHLESS) + len(NOT_POSTERIOR)


@pytest.mark.soak
def test_no_nonsense_set_is_certified() -> None:
    report = bench_sabotage(QUICK, lambda _phase, _share: None)
    assert report["sets"] >= QUICK.sets
    assert report["certified"] == 0
    assert report["right_certified"] == report["right_sets"]
