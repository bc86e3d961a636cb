"""safetensors without copies: files from outside are looked at where they lie, ours are written piece by piece.

A data set may be as large as an upload may be. Read by the library it would be in memory four times.
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
"""The metadata that libraries write by themselves."""
_ALIGNMENT = 8
_DTYPES = {
    **{f"F{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    "BOOL": "|b1",
}
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}


def map_file(file: IO[bytes]) -> Content:
    """The file's content, paged in as it is looked at. Nobody else may shorten the file meanwhile."""
    file.flush()
    file.seek(0, 2)
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file.tell() > 0 else b""


def view_arrays(content: Content) -> dict[str, NDArray[Any]]:
    """The tensors, as views of the content. Raises ValueError unless they fill it exactly, without gap or overlap."""
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 or size > min(len(content) - 8, LARGEST_HEADER):
        raise ValueError("it does not begin with a header")
    try:
        header = json.loads(content[8 : 8 + size])
        _check_metadata(header.pop("__metadata__", {}))
        entries = sorted((*entry.pop("data_offsets"), name, entry) for name, entry in header.items())
        return _views(content, 8 + size, entries)
    except _Unfit:
        raise
    except (ValueError, AttributeError, KeyError, TypeError, OverflowError, RecursionError):
        raise ValueError("its header is not one of safetensors") from None


def pieces_of(arrays: Arrays) -> list[Piece]:
    """A safetensors file with these tensors, as pieces to write one after the other."""
    # The widest first, so that every tensor is aligned.
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


class _Unfit(ValueError):
    pass


def _check_metadata(metadata: Any) -> None:
    if not metadata.items() <= FRAMEWORKS:
        raise _Unfit("its header has metadata, which would be kept and could name somebody: save it without")


def _views(content: Content, start: int, entries: Sequence[tuple[int, int, str, Any]]) -> dict[str, NDArray[Any]]:
    arrays, end = {}, 0
    for first, last, name, entry in entries:
        dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(entry["shape"])
        if any(type(length) is not int or length < 0 for length in (first, last, *shape)):
            raise TypeError("no whole number")
        if first != end or last - first != dtype.itemsize * math.prod(shape):
            raise _Unfit("its tensors do not fit their places")
        count, end = math.prod(shape), last
        arrays[name] = np.frombuffer(content, dtype, count, min(start + first, len(content) - 1)).reshape(shape)
    if start + end != len(content):
        raise _Unfit("it is longer or shorter than its header says")
    return arrays
