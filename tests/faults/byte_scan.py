"""Searches every byte of files for numbers of forgotten rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

WIDTH = 8


def files_with(rows: NDArray[np.float64], folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the files that hold any number of these rows as a float64, at any offset."""
    patterns = np.unique(rows.astype("<f8").view("<u8"))
    for path in sorted({path for folder in folders for path in folder.rglob("*")}):
        if path.is_file() and holds(path.read_bytes(), patterns):
            yield path


def holds(content: bytes, patterns: NDArray[np.uint64]) -> bool:
    """Whether any of the patterns is in the content. Compares only where the first two bytes fit one of them."""
    if len(content) < WIDTH or not len(patterns):
        return False
    values = np.frombuffer(content, np.uint8)
    starts = values[: 1 - WIDTH].astype(np.uint16) | values[1 : 2 - WIDTH].astype(np.uint16) << 8
    is_start = np.zeros(1 << 16, dtype=bool)
    is_start[patterns & 0xFFFF] = True
    candidates = np.lib.stride_tricks.sliding_window_view(values, WIDTH)[is_start[starts]]
    return bool(np.isin(candidates.copy().view("<u8"), patterns).any())
