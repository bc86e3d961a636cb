from __future__ import annotations

import pytest

from lethe.verify import statements
from service.printing import wording
from vocabulary.references import DEFAULT_REFERENCE, REFERENCES, is_as_strong


def test_the_default_is_the_strongest_promise() -> None:
    assert REFERENCES[-1] == DEFAULT_REFERENCE


def test_printer_and_verifier_describe_every_reference() -> None:
    assert set(wording.REFERENCES) == set(REFERENCES)
    assert tuple(statements.REFERENCES) == REFERENCES


@pytest.mark.parametrize(
    ("reference", "required", "holds"),
    [
        ("posterior", "posterior", True),
        ("posterior", "stored draws", True),
        ("stored draws", "stored draws", True),
        ("stored draws", "posterior", False),
    ],
)
def test_stored_draws_promise_less_than_the_posterior(reference: str, required: str, holds: bool) -> None:
    assert is_as_strong(reference, required) is holds
