from __future__ import annotations

import numpy as np
import pytest

from benchmarks.certificates.audit.awkward_data import FAMILIES, DataSet, FamilyName, draw_data
from benchmarks.certificates.audit.extended import Array
from benchmarks.certificates.audit.removals import REMOVALS, choose_rows, influence


def scene(family: FamilyName, kind: str = "ordinary") -> tuple[DataSet, Array]:
    data = draw_data(family, kind, np.random.default_rng(2))  # type: ignore[arg-type]
    size = int(data.config["dimensions"] * data.config.get("classes", data.config.get("components", 1)))
    return data, np.concatenate([np.random.default_rng(1).normal(size=size), np.ones(size)])


@pytest.mark.parametrize("family", FAMILIES)
def test_removals_name_rows_once(family: FamilyName) -> None:
    data, flat = scene(family)
    sizes = {}
    for removal in REMOVALS:
        rows = choose_rows(removal, data, flat, np.random.default_rng(0))
        assert len(set(rows.tolist())) == len(rows) > 0
        sizes[removal] = len(rows)
    n = len(data.rows)
    assert (sizes["one"], sizes["sequence"], sizes["tenth"], sizes["half"]) == (1, 1, n // 10, n // 2)


def test_a_class_goes_as_a_whole() -> None:
    data, flat = scene("softmax-regression")
    rows = choose_rows("class", data, flat, np.random.default_rng(0))
    label = data.group[rows[0]]
    assert set(rows.tolist()) == set(np.flatnonzero(data.group == label).tolist())


def test_a_mixture_keeps_a_row_for_each_component() -> None:
    data, flat = scene("gaussian-mixture", "tiny")
    rows = choose_rows("half", data, flat, np.random.default_rng(0))
    assert len(data.rows) - len(rows) >= data.config["components"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_far_off_is_influential(family: FamilyName) -> None:
    data, flat = scene(family, "leverage")
    rows = data.rows[:, : int(data.config["dimensions"])]
    far = int(np.linalg.norm(rows - np.median(rows, axis=0), axis=1).argmax())
    assert influence(data, flat).shape == (len(data.rows),)
    if family in ("linear-regression", "gaussian-mixture"):
        assert influence(data, flat).argmax() == far
