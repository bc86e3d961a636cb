"""Where tensors live: chosen at run time, never configured."""

import torch


def pick_device() -> torch.device:
    """The CUDA device with the most free memory, or the CPU (MPS has no float64, which every bound here needs)."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    free = [torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count())]
    return torch.device("cuda", free.index(max(free)))


def has_cuda() -> bool:
    """Asked of NVML where possible: unlike `is_available` that leaves CUDA usable in processes forked afterwards."""
    return torch.cuda.device_count() > 0
