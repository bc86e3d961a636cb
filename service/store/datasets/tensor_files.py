"""Reading and writing safetensors without copies: uploads are viewed in place, own files are written in pieces.

A data set can be as large as the largest upload. The safetensors library would hold it in memory four times.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

Content = bytes | mmap.mmap
Piece = bytes | memoryview | mmap.mmap
Arrays = Mapping[str, NDArray[Any]]

LARGEST_HEADER = 1 << 20
FRAMEWORKS = {("format", name) for name in ("pt", "np", "tf", "flax", "jax", "mlx", "paddle")}
"""Metadata that libraries add by default."""
_ALIGNMENT = 8
_DTYPES = {
    **{f"F{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    "BOOL": "|b1",
}
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}


def map_file(file: IO[bytes]) -> Content:
    """Map the file's content into memory. Nobody may truncate the file meanwhile."""
    file.flush()
    file.seek(0, 2)
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file.tell() > 0 else b""


def view_arrays(content: Content) -> dict[str, NDArray[Any]]:
    """Return the tensors as views of the content. Raise ValueError unless they fill it without gap or overlap."""
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 or size > min(len(content) - 8, LARGEST_HEADER):
        raise ValueError("its header is missing or too long")
    try:
        header = json.loads(content[8 : 8 + size])
        _check_metadata(header.pop("__metadata__", {}))
        entries = sorted((*entry.pop("data_offsets"), name, entry) for name, entry in header.items())
        return _views(content, 8 + size, entries)
    except _InvalidFile:
        raise
    except (ValueError, AttributeError, KeyError, TypeError, OverflowError, RecursionError):
        raise ValueError("its header is not a safetensors header") from None


def pieces_of(arrays: Arrays) -> list[Piece]:
    """Return a safetensors file with these tensors, as pieces to be written one after the other."""
    # The widest types first, so that every tensor is aligned.
    ordered = sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0]))
    header, end = {}, 0
    for name, array in ordered:
        offsets = [end, end := end + array.nbytes]
        header[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return [
        len(text).to_bytes(8, "little") + text,
        *(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for _, array in ordered),
    ]


class _InvalidFile(ValueError):
    pass


def _check_metadata(metadata: Any) -> None:
    if not metadata.items() <= FRAMEWORKS:
        raise _InvalidFile("its header has metadata, which would be stored and could name a person: save it without")


def _views(content: Content, start: int, entries: Sequence[tuple[int, int, str, Any]]) -> dict[str, NDArray[Any]]:
    arrays, end = {}, 0
    for first, last, name, entry in entries:
        dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(entry["shape"])
        if any(type(length) is not int or length < 0 for length in (first, last, *shape)):
            raise TypeError("not a non-negative integer")
        if first != end or last - first != dtype.itemsize * math.prod(shape):
            raise _InvalidFile("its tensors do not match their offsets")
        count, end = math.prod(shape), last
        arrays[name] = np.frombuffer(content, dtype, count, min(start + first, len(content) - 1)).reshape(shape)
    if start + end != len(content):
        raise _InvalidFile("its length does not match its header")
    return arrays
