from __future__ import annotations

import numpy as np
import pytest

from benchmarks.certificates.audit.awkward_data import DATA_KINDS, FAMILIES, DataKind, DataSet, FamilyName, draw_data


def drawn(family: FamilyName, kind: DataKind, seed: int = 5) -> DataSet:
    return draw_data(family, kind, np.random.default_rng(seed))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", DATA_KINDS)
def test_data_sets_are_small_finite_and_repeatable(family: FamilyName, kind: DataKind) -> None:
    data = drawn(family, kind)
    assert data.rows.shape[0] == len(data.group) <= 300
    assert np.isfinite(data.rows).all()
    assert np.array_equal(data.rows, drawn(family, kind).rows)
    assert data.rows.shape[1] == data.config["dimensions"] + (family != "gaussian-mixture")


def test_the_kinds_are_what_they_are_called() -> None:
    features = {kind: drawn("logistic-regression", kind).rows[:, :-1] for kind in DATA_KINDS}
    scales = features["unscaled"].std(0)
    assert scales.max() / scales.min() > 100
    assert np.linalg.svd(features["collinear"])[1][-1] < 0.3
    assert np.abs(features["heavy tails"]).max() > 20
    assert len(features["tiny"]) <= 12
    assert len(np.unique(features["duplicates"], axis=0)) <= 6
    norms = np.sort(np.linalg.norm(features["leverage"], axis=1))
    assert norms[-1] > 20 * norms[-2]


def test_a_rare_class_has_about_one_percent() -> None:
    for family in FAMILIES[1:]:
        data = drawn(family, "rare class")
        assert 1 <= (data.group == data.group.max()).sum() <= 3
        assert len(data.group) >= 100
