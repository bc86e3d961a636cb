"""Rows in chunks that fit into memory: fewer at once after each time that it ran out, instead of giving up."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ml.errors import InvalidInput, MemoryExhausted
from ml.numerics.memory import is_out_of_memory

T = TypeVar("T")


class RowBudget:
    """How many rows may be in memory together. What one computation learns holds for the next with the same budget."""

    def __init__(self, rows_at_once: int) -> None:
        if rows_at_once < 1:
            raise InvalidInput(f"rows_at_once is {rows_at_once}: let at least one row into memory")
        self.rows_at_once = rows_at_once

    def run(self, compute: Callable[[int], T], rows: int) -> T:
        """`compute(rows_at_once)`, with half as many after each time that memory runs out, down to one.

        `rows` is how many there are in all: allowing more than these would change nothing.
        """
        while True:
            try:
                return compute(self.rows_at_once)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
            # Here and not above: the error holds on to the frames it went through, and these to their tensors.
            self._halve(rows)

    def _halve(self, rows: int) -> None:
        if self.rows_at_once == 1:
            raise MemoryExhausted(
                "not even one row at a time fits into memory: give the worker more memory or let fewer processes share "
                "it, or register a model with fewer parameters"
            )
        self.rows_at_once = max(1, min(self.rows_at_once, rows) // 2)
