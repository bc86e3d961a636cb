from __future__ import annotations

import numpy as np
import pytest

from service.store.datasets import limits
from service.store.datasets.limits import check_magnitude, check_widths, first_row, largest_value
from service.store.errors import InvalidRegistration
from vocabulary.layouts import UNKNOWN_LAYOUT, Layout


@pytest.mark.parametrize("at_once", [1, 6, 1 << 20])
def test_the_first_wrong_row_is_found_in_any_part(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(limits, "CHECKED_AT_ONCE", at_once)
    array = np.zeros((7, 3))
    assert first_row(array, np.isnan) is None
    array[4, 2] = array[6, 0] = np.nan
    assert first_row(array, np.isnan) == 4
    assert first_row(array[:, 2], np.isnan) == 4
    assert first_row(np.float64(np.nan).reshape(()), np.isnan) == 0
    assert first_row(np.zeros((0, 3)), np.isnan) is None


def test_samples_need_more_digits() -> None:
    assert largest_value(Layout(), "variational") == 1e12
    assert largest_value(Layout(), "samples") == 1e6
    assert largest_value(Layout(largest_value=1e3), "samples") == 1e3
    assert largest_value(UNKNOWN_LAYOUT, "samples") is None


def test_the_message_has_the_row_and_not_the_value() -> None:
    with pytest.raises(InvalidRegistration) as refused:
        check_magnitude("records", "x", np.array([[1.0], [-12345.0]]), 1e3)
    assert refused.value.field == "records"
    assert "row 1 of 'x'" in str(refused.value)
    assert "rescale the columns" in str(refused.value)
    assert "12345" not in str(refused.value)


@pytest.mark.parametrize("width", [0.9e-3, 1.1e3])
def test_widths_have_a_least_and_a_largest_value(width: float) -> None:
    check_widths(np.array([1e-3, 1e3]), 1e3)
    with pytest.raises(InvalidRegistration, match=r"row 1 of 'std' holds a width outside 0\.001 to 1000"):
        check_widths(np.array([1.0, width]), 1e3)
