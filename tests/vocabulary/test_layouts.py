from vocabulary.layouts import UNKNOWN_LAYOUT, Layout


def test_the_parameters_are_the_entries_of_the_mean() -> None:
    assert Layout((3, 2), columns=4).parameter_count == 6
    assert Layout((7,)).parameter_count == 7


def test_an_unknown_layout_has_no_parameter_count() -> None:
    assert UNKNOWN_LAYOUT.parameter_count is None
    assert (UNKNOWN_LAYOUT.columns, UNKNOWN_LAYOUT.min_rows) == (None, 1)
