"""A model's data set: arrays with a common first dimension, and the number and salt of each row. Torch-free."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from service.store.datasets.limits import first_row
from service.store.datasets.tensor_files import Content, Piece, pieces_of, view_arrays
from service.store.errors import InvalidRegistration

RECORD = "record"
"""Tensor name of the row numbers, stored beside the data."""
SALT, SALT_BYTES = "salt", 16
"""Random bytes of each row, stored beside it and erased with it. Without them nobody can recover a row from the data
set's commitments (tree.py)."""


@dataclass(frozen=True)
class Dataset:
    arrays: Mapping[str, NDArray[Any]]
    records: NDArray[np.int64]
    salts: NDArray[np.uint8]

    def pieces(self) -> list[Piece]:
        """Return the data set's file, in pieces."""
        return pieces_of({**self.arrays, RECORD: self.records, SALT: self.salts})

    def positions(self, records: Collection[int]) -> NDArray[np.int64]:
        """Return the current row positions of these records."""
        return np.flatnonzero(np.isin(self.records, list(records)))

    def without(self, records: Collection[int]) -> Dataset:
        """Return the data set without these rows."""
        retained = ~np.isin(self.records, list(records))
        arrays = {name: np.ascontiguousarray(array[retained]) for name, array in self.arrays.items()}
        return Dataset(arrays, self.records[retained], self.salts[retained])


def load_dataset(content: bytes) -> Dataset:
    """Load a data set from its file."""
    arrays = load(content)
    records, salts = arrays.pop(RECORD), arrays.pop(SALT, None)
    # Files from before salts existed get them with their next batch. Their root was never published.
    return Dataset(arrays, records, _fresh_salts(len(records)) if salts is None else salts)


def parse_dataset_upload(content: Content) -> Dataset:
    """Check an uploaded data set and number its rows."""
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
    """Return the tensors of an uploaded safetensors file as views of its content. All values must be finite."""
    try:
        arrays = view_arrays(content)
    except ValueError as error:
        raise InvalidRegistration(field, f"not a readable safetensors file: {error}") from None
    if not arrays:
        raise InvalidRegistration(field, "the file holds no tensor")
    for array in arrays.values():
        row = first_row(array, lambda part: ~np.isfinite(part)) if array.dtype.kind == "f" else None
        if row is not None:
            raise InvalidRegistration(field, f"row {row} of a tensor holds NaN or infinity; clean or drop it")
    return arrays


def _fresh_salts(count: int) -> NDArray[np.uint8]:
    return np.frombuffer(secrets.token_bytes(SALT_BYTES * count), np.uint8).reshape(count, SALT_BYTES)
