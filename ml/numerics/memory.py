"""Recognition of the errors by which memory runs out, on the CPU and on GPUs."""

from __future__ import annotations

import torch

from ml.errors import MemoryExhausted

_PHRASES = (
    "can't allocate memory",  # torch's CPU allocator on Linux
    "not enough memory",  # torch's CPU allocator on Windows
    "std::bad_alloc",  # C++
    "out of memory",  # "CUDA error: out of memory", from the driver rather than torch's allocator
    "STATUS_ALLOC_FAILED",  # cuBLAS, cuSOLVER and cuDNN
)
"""Parts of messages of plain RuntimeErrors: only torch's GPU allocator raises a type of its own."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out."""
    if isinstance(error, MemoryError | MemoryExhausted | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _PHRASES)
