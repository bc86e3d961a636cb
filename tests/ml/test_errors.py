from itertools import permutations

import pytest

from ml.errors import ForgettingError, InvalidInput, MemoryExhausted, NumericalFailure


@pytest.mark.parametrize("error", [InvalidInput, NumericalFailure, MemoryExhausted])
def test_the_base_class_catches_all(error: type[ForgettingError]) -> None:
    with pytest.raises(ForgettingError, match="what to change"):
        raise error("what to change")


def test_no_error_is_a_subclass_of_another() -> None:
    for first, second in permutations((InvalidInput, NumericalFailure, MemoryExhausted), 2):
        assert not issubclass(first, second)
