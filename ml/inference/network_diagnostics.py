"""Diagnostics of a network's sample set: mixing in function space, and Stein's checks with gradients it can afford.

A gradient on all rows at each draw costs more than sampling did. Where that exceeds a budget, each draw gets a fresh
batch of rows instead: the estimates of ∇U stay unbiased, and the checks allow for their noise. The budget counts rows
times parameters.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.func import grad

from ml.inference.diagnostics import Diagnostics, diagnose, evenly_spaced_draws, least_undetectable
from ml.inference.function_mixing import FunctionMixing, measure_functions
from ml.inference.mixing import by_chain
from ml.models.network import Network
from ml.models.potential import Potential
from ml.posteriors.sample_set import SampleSet

_CHECKED_DRAWS = 2000  # of all chains
_BUDGET = 1e10  # rows times parameters: about ten seconds on one core
_MIN_ROWS = 32
_GRADIENT_SEED = 0


def diagnose_network(network: Network, sample_set: SampleSet, data: Tensor, reach: float | None = None) -> Diagnostics:
    """Test whether the weighted samples can be draws of p(θ | data).

    `reach` is the epsilon that is asked for. Draws that cannot be certified within it whatever their gradients are, as
    they fail in function space or are too few, are not checked further: no gradient is computed.
    """
    functions = measure_functions(network, sample_set, data)
    if reach is not None:
        complaints = (*functions.problems(), *_out_of_reach(network, sample_set, reach))
        if complaints:
            return _unchecked(functions, complaints)
    draws, log_weights = (by_chain(values, sample_set.chain) for values in (sample_set.samples, sample_set.log_weights))
    selected = evenly_spaced_draws(draws, min(draws.shape[1], max(1, _CHECKED_DRAWS // len(draws))))
    affordable = max(_MIN_ROWS, int(_BUDGET / (network.parameter_count * selected.shape[:2].numel())))
    gradients = _gradients(network, selected.flatten(0, 1), data, affordable).view_as(selected)
    return diagnose(draws, gradients, log_weights, functions, exact_gradients=affordable >= len(data))


def _out_of_reach(network: Network, sample_set: SampleSet, reach: float) -> Iterator[str]:
    count = min(_CHECKED_DRAWS, len(sample_set.samples))
    least = least_undetectable(network.parameter_count, count)
    if least > reach:
        yield (
            f"the gradients of {count} draws of {network.parameter_count} parameters cannot exclude less than "
            f"{least:.2g} nats, and {reach:.2g} are asked for: ask for less, or for the reference 'stored draws'"
        )


def _gradients(network: Network, samples: Tensor, data: Tensor, batch_size: int) -> Tensor:
    """Return ∇U at each draw, or unbiased estimates of it if the rows exceed a batch."""
    if batch_size >= len(data):
        return Potential(network, data).gradients(samples.to(data.dtype)).to(samples.dtype)
    generator = torch.Generator().manual_seed(_GRADIENT_SEED)
    batches = (torch.randint(len(data), (batch_size,), generator=generator).to(data.device) for _ in samples)
    return torch.stack(
        [_gradient(network, theta, data[batch], len(data)) for theta, batch in zip(samples, batches, strict=True)]
    )


def _gradient(network: Network, theta: Tensor, rows: Tensor, total: int) -> Tensor:
    value = functools.partial(_potential, network, rows, total / len(rows))
    gradient: Tensor = grad(value)(theta.to(rows.dtype))
    return gradient.to(theta.dtype)


def _potential(network: Network, rows: Tensor, scale: float, theta: Tensor) -> Tensor:
    return -scale * network.log_likelihood(theta, rows).sum() - network.log_prior(theta)


def _unchecked(functions: FunctionMixing, complaints: tuple[str, ...]) -> Diagnostics:
    """Return diagnostics of draws that failed before any gradient was computed."""
    return Diagnostics(
        r_hat=functions.r_hat,
        ess=functions.ess,
        width=math.nan,
        mean_gradient=math.nan,
        mean_gradient_limit=math.nan,
        virial=math.nan,
        virial_limit=math.nan,
        worst_parameter=None,
        undetectable=math.inf,
        warning="; ".join(complaints),
        functions=functions,
    )
