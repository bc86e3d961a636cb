import pytest

from ml.errors import ForgettingError, InvalidInput, NumericalFailure


@pytest.mark.parametrize("error", [InvalidInput, NumericalFailure])
def test_one_base_catches_all(error: type[ForgettingError]) -> None:
    with pytest.raises(ForgettingError, match="what to change"):
        raise error("what to change")


def test_the_two_kinds_are_apart() -> None:
    assert not issubclass(InvalidInput, NumericalFailure)
    assert not issubclass(NumericalFailure, InvalidInput)
