"""A model's data set: arrays that share their first dimension, and the record number of each row. Torch-free."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from service.store.errors import InvalidRegistration

RECORD = "record"
"""The name under which row numbers are stored beside the data."""


@dataclass(frozen=True)
class Dataset:
    arrays: Mapping[str, NDArray[Any]]
    records: NDArray[np.int64]

    def to_bytes(self) -> bytes:
        return save({**self.arrays, RECORD: self.records})

    def positions(self, records: Collection[int]) -> NDArray[np.int64]:
        """Where these records stand now."""
        return np.flatnonzero(np.isin(self.records, list(records)))

    def without(self, records: Collection[int]) -> Dataset:
        """The data set with these rows gone."""
        kept = ~np.isin(self.records, list(records))
        arrays = {name: np.ascontiguousarray(array[kept]) for name, array in self.arrays.items()}
        return Dataset(arrays, np.ascontiguousarray(self.records[kept]))


def stored_dataset(content: bytes) -> Dataset:
    """Read back what `to_bytes` wrote."""
    arrays = load(content)
    return Dataset(arrays, arrays.pop(RECORD))


def uploaded_dataset(content: bytes) -> Dataset:
    """Check a data set from outside and number its rows."""
    arrays = load_arrays("records", content)
    if RECORD in arrays:
        raise InvalidRegistration("records", f"the tensor name {RECORD!r} is reserved; rename it")
    lengths = {array.shape[0] if array.ndim else 0 for array in arrays.values()}
    if len(lengths) != 1 or lengths == {0}:
        raise InvalidRegistration("records", "all tensors must have the same, non-zero number of rows")
    return Dataset(arrays, np.arange(lengths.pop(), dtype=np.int64))


def load_arrays(field: str, content: bytes) -> dict[str, NDArray[Any]]:
    """Tensors of a safetensors file from outside, all finite."""
    try:
        arrays = load(content)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise InvalidRegistration(field, f"not a safetensors file that can be read: {error}") from None
    if not arrays:
        raise InvalidRegistration(field, "the file holds no tensor")
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InvalidRegistration(field, f"tensor {name!r} holds NaN or infinity; clean the data first")
    return arrays
