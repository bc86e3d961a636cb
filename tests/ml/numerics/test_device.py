import pytest
import torch

from ml.numerics.device import has_cuda, pick_device


def test_the_cpu_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device() == torch.device("cpu")


def test_the_gpu_with_the_most_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: ([5, 9, 2][index], 10))
    assert pick_device() == torch.device("cuda", 1)


@pytest.mark.parametrize("count", [0, 2])
def test_a_gpu_is_looked_for_without_waking_the_driver(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """`is_available` would: a process forked afterwards could not use the GPU."""
    monkeypatch.delattr(torch.cuda, "is_available")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert has_cuda() is (count > 0)
