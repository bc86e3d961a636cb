"""Retained rows of a data set, and the checks of which rows to forget."""

import torch
from torch import Tensor

from ml.errors import InvalidInput
from ml.models.likelihood import Likelihood


def retained_rows(data: Tensor, forgotten: Tensor) -> Tensor:
    """Return the rows of `data` at positions not in `forgotten`. InvalidInput unless it names rows, each once."""
    if forgotten.ndim != 1 or forgotten.dtype != torch.int64:
        raise InvalidInput("forgotten is not a list of row positions: pass a 1-D tensor of torch.int64")
    if len(forgotten) == 0:
        raise InvalidInput("no row to forget: name at least one")
    if int(forgotten.min()) < 0 or int(forgotten.max()) >= len(data):
        raise InvalidInput(f"a row position is outside 0..{len(data) - 1}: name rows of this data set only")
    keep = torch.ones(len(data), dtype=torch.bool, device=data.device)
    keep[forgotten] = False
    retained = data[keep]
    if len(retained) + len(forgotten) != len(data):
        raise InvalidInput("a row is named twice: name each row once")
    if len(retained) == 0:
        raise InvalidInput("every row would be forgotten: delete the model instead")
    return retained


def retained_positions(data: Tensor, forgotten: Tensor) -> Tensor:
    """Return the positions of all rows that are not in `forgotten`, in order."""
    keep = torch.ones(len(data), dtype=torch.bool, device=data.device)
    keep[forgotten] = False
    return torch.nonzero(keep).flatten()


def retained_rows_of_samples(likelihood: Likelihood, samples: Tensor, data: Tensor, forgotten: Tensor) -> Tensor:
    """Return the retained rows, after checking samples (T×p), data and positions against the likelihood."""
    if samples.ndim != 2 or samples.shape[1] != likelihood.parameter_count or len(samples) == 0:
        raise InvalidInput(
            f"samples have shape {tuple(samples.shape)}: "
            f"pass at least one row of {likelihood.parameter_count} parameters"
        )
    if samples.dtype != torch.float64 or not bool(torch.isfinite(samples).all()):
        raise InvalidInput("samples hold NaN or infinity, or are not torch.float64: pass finite values in float64")
    likelihood.check_data(data)
    retained = retained_rows(data, forgotten)
    likelihood.check_data(retained)
    return retained
