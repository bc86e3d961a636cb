from __future__ import annotations

import ast
import inspect
from enum import StrEnum
from itertools import pairwise

import pytest
from sqlalchemy import String
from sqlalchemy.orm import InstrumentedAttribute

from service.store import states
from service.store.states import BatchStatus, CallbackStatus, DeletionStatus, Device, Role
from service.store.tables import Batch, Callback, Deletion, DeletionTarget, Model, Token

COLUMNS = [
    (Role, Token.role),
    (DeletionStatus, Deletion.status),
    (DeletionStatus, DeletionTarget.status),
    (BatchStatus, Batch.status),
    (Device, Model.device),
    (CallbackStatus, Callback.status),
]


@pytest.mark.parametrize(("values", "column"), COLUMNS)
def test_values_fit_their_column(values: type[StrEnum], column: InstrumentedAttribute[str]) -> None:
    length = column.type.length if isinstance(column.type, String) else None
    assert length is not None
    assert max(map(len, values)) <= length


def test_every_value_is_documented() -> None:
    for definition in ast.parse(inspect.getsource(states)).body:
        if isinstance(definition, ast.ClassDef):
            assert ast.get_docstring(definition)
            for statement, description in pairwise([*definition.body, None]):
                if isinstance(statement, ast.Assign):
                    assert isinstance(description, ast.Expr), f"{definition.name}: {ast.unparse(statement)}"
