import itertools
from typing import get_args

import pytest

from lethe.verify import statements
from service.printing import wording
from vocabulary.levels import CERTIFIED_LEVELS, DESTROYED, LEVELS, ListedLevel, is_at_least


def test_levels_are_ordered_from_the_weakest_to_the_strongest() -> None:
    assert LEVELS == ("none", "estimated", "proved", "retrained")
    for weak, strong in itertools.combinations(LEVELS, 2):
        assert is_at_least(strong, weak)
        assert not is_at_least(weak, strong)
    assert all(is_at_least(level, level) for level in LEVELS)


def test_an_unknown_level_is_not_compared() -> None:
    with pytest.raises(ValueError, match="index"):
        is_at_least("guessed", "none")


def test_every_level_but_none_can_be_certified() -> None:
    assert ("none", *CERTIFIED_LEVELS) == LEVELS


def test_the_verifier_and_the_printer_know_the_certified_levels() -> None:
    """The verifier stands alone, so it has a list of its own."""
    assert statements.LEVELS == CERTIFIED_LEVELS
    assert set(wording.LEVELS) == set(CERTIFIED_LEVELS)


def test_a_destroyed_model_is_listed_but_has_no_level() -> None:
    assert (*CERTIFIED_LEVELS, DESTROYED) == get_args(ListedLevel)
    with pytest.raises(ValueError, match="index"):
        is_at_least(DESTROYED, "none")
