from __future__ import annotations

import re

from service.store import errors
from service.store.errors import InvalidRegistration, StoreError


def test_the_drawn_tree_lists_every_error() -> None:
    drawn = re.findall(r"^[├└]── (\w+) {2,}\S", errors.__doc__ or "", re.MULTILINE)
    assert drawn == [error.__name__ for error in StoreError.__subclasses__()]


def test_a_registration_error_names_its_field() -> None:
    error = InvalidRegistration("posterior", "the file holds no tensor")
    assert (error.field, str(error)) == ("posterior", "the file holds no tensor")
