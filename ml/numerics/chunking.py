"""Chunks of rows that fit into memory: whenever memory runs out, the next attempt takes half as many rows at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ml.errors import InvalidInput, MemoryExhausted
from ml.numerics.memory import is_out_of_memory

T = TypeVar("T")


class RowBudget:
    """Number of rows to hold in memory at once. A reduction persists for later computations with the same budget."""

    def __init__(self, rows_at_once: int) -> None:
        if rows_at_once < 1:
            raise InvalidInput(f"rows_at_once is {rows_at_once}: allow at least one row")
        self.rows_at_once = rows_at_once

    def run(self, compute: Callable[[int], T], rows: int) -> T:
        """Return `compute(rows_at_once)`, with half as many whenever memory runs out, down to one.

        `rows` is the total number of rows: halving starts from there if the budget is larger.
        """
        while True:
            try:
                return compute(self.rows_at_once)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
            # Outside of the except block: the error keeps its frames alive, and these their tensors.
            self._halve(rows)

    def _halve(self, rows: int) -> None:
        if self.rows_at_once == 1:
            raise MemoryExhausted(
                "not even one row at a time fits into memory: give the worker more memory, run fewer processes beside "
                "it, or register a model with fewer parameters"
            )
        self.rows_at_once = max(1, min(self.rows_at_once, rows) // 2)
