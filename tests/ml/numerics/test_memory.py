from __future__ import annotations

import pytest
import torch

from ml.errors import InvalidInput, MemoryExhausted
from ml.numerics.memory import is_out_of_memory


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryExhausted("not even one row fits"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
        RuntimeError("std::bad_alloc"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"),
    ],
    ids=str,
)
def test_exhausted_memory_is_recognised(error: Exception) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shapes do not fit"),
        RuntimeError("CUDA error: device-side assert triggered"),
        ValueError("out of memory"),
        InvalidInput("not enough memory"),
    ],
    ids=str,
)
def test_other_errors_are_not(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_the_allocator_of_this_machine_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 58)
    assert is_out_of_memory(caught.value)
