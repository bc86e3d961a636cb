from itertools import permutations

import pytest

from ml.errors import ForgettingError, InvalidInput, MemoryExhausted, NumericalFailure


@pytest.mark.parametrize("error", [InvalidInput, NumericalFailure, MemoryExhausted])
def test_one_base_catches_all(error: type[ForgettingError]) -> None:
    with pytest.raises(ForgettingError, match="what to change"):
        raise error("what to change")


def test_the_kinds_are_apart() -> None:
    for one, other in permutations((InvalidInput, NumericalFailure, MemoryExhausted), 2):
        assert not issubclass(one, other)
