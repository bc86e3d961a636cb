from __future__ import annotations

from service.printing.parts import numbered_list


def test_a_short_list_is_numbered_in_full() -> None:
    table = numbered_list("People", "Commitment", ["a", "b"], limit=2)
    assert table.header == ("No.", "Commitment")
    assert table.rows == (("1", "a"), ("2", "b"))
    assert sum(table.shares) == 1


def test_a_long_list_says_how_many_are_left_out() -> None:
    table = numbered_list("People", "Commitment", [str(number) for number in range(3000)], limit=1000)
    assert table.rows[999] == ("1,000", "999")
    assert table.rows[1000] == ("–", "and 2,000 more, in the signed file")
