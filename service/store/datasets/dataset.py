"""A model's data set: arrays that share their first dimension, the number and the salt of each row. Torch-free."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from service.store.datasets.tensor_files import Content, Piece, pieces_of, view_arrays
from service.store.errors import InvalidRegistration

RECORD = "record"
"""The name under which row numbers are stored beside the data."""
SALT, SALT_BYTES = "salt", 16
"""Random bytes of each row, stored beside it and erased with it: without them nobody can find out a row from what its
data set is committed to (dataset_tree.py)."""
AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Dataset:
    arrays: Mapping[str, NDArray[Any]]
    records: NDArray[np.int64]
    salts: NDArray[np.uint8]

    def pieces(self) -> list[Piece]:
        """As a file, piece by piece."""
        return pieces_of({**self.arrays, RECORD: self.records, SALT: self.salts})

    def positions(self, records: Collection[int]) -> NDArray[np.int64]:
        """Where these records stand now."""
        return np.flatnonzero(np.isin(self.records, list(records)))

    def without(self, records: Collection[int]) -> Dataset:
        """The data set with these rows gone."""
        kept = ~np.isin(self.records, list(records))
        arrays = {name: np.ascontiguousarray(array[kept]) for name, array in self.arrays.items()}
        return Dataset(arrays, self.records[kept], self.salts[kept])


def stored_dataset(content: bytes) -> Dataset:
    """Read back what `pieces` made."""
    arrays = load(content)
    records, salts = arrays.pop(RECORD), arrays.pop(SALT, None)
    # Stored before there were salts: it gets them with its next batch, and nobody was told of a root before that.
    return Dataset(arrays, records, _fresh_salts(len(records)) if salts is None else salts)


def uploaded_dataset(content: Content) -> Dataset:
    """Check a data set from outside and number its rows."""
    arrays = load_arrays("records", content)
    for name in (RECORD, SALT):
        if name in arrays:
            raise InvalidRegistration("records", f"the tensor name {name!r} is reserved; rename it")
    lengths = {array.shape[0] if array.ndim else 0 for array in arrays.values()}
    if len(lengths) != 1 or lengths == {0}:
        raise InvalidRegistration("records", "all tensors must have the same, non-zero number of rows")
    count = lengths.pop()
    return Dataset(arrays, np.arange(count, dtype=np.int64), _fresh_salts(count))


def load_arrays(field: str, content: Content) -> dict[str, NDArray[Any]]:
    """Tensors of a safetensors file from outside, all finite. They are views of the content."""
    try:
        arrays = view_arrays(content)
    except ValueError as error:
        raise InvalidRegistration(field, f"not a safetensors file that can be read: {error}") from None
    if not arrays:
        raise InvalidRegistration(field, "the file holds no tensor")
    for array in arrays.values():
        if array.dtype.kind == "f" and not _all_finite(array.reshape(-1)):
            raise InvalidRegistration(field, "a tensor holds NaN or infinity; clean the data first")
    return arrays


def _fresh_salts(count: int) -> NDArray[np.uint8]:
    return np.frombuffer(secrets.token_bytes(SALT_BYTES * count), np.uint8).reshape(count, SALT_BYTES)


def _all_finite(numbers: NDArray[Any]) -> bool:
    """A part at a time: the answers for all at once would be another copy, if a smaller one."""
    return all(np.isfinite(numbers[start : start + AT_ONCE]).all() for start in range(0, len(numbers), AT_ONCE))
