"""Choice of the device for tensors, at run time and never configured."""

import torch


def pick_device() -> torch.device:
    """Return the CUDA device with the most free memory, or the CPU (MPS lacks float64, which every bound needs)."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    free = [torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count())]
    return torch.device("cuda", free.index(max(free)))


def has_cuda() -> bool:
    """Return whether there is a CUDA device. Unlike `is_available`, NVML leaves CUDA usable in forked processes."""
    return torch.cuda.device_count() > 0
