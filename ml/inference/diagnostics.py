"""Diagnostics of a sample set: whether it can be draws of its posterior, and what its draws cannot exclude.

    r_hat           rank-normalised split-R̂ of the worst parameter            (Vehtari et al. 2021)
    ess             bulk effective sample size of the worst one: at least 100 a chain, at most the number of draws
    width           √( E (θ - θ̄)·∇U(θ) / p ): the width of the draws relative to the posterior's
    mean_gradient   largest deviation of a parameter's mean gradient from 0, in standard errors
    virial          largest deviation of a parameter's virial from 1, in standard errors
    undetectable    nats: the largest divergence that the draws do not exclude (95 %)

R̂ and ESS compare the chains with each other, the others with the potential U (`ml.inference.stein`): chains that agree
may all be wrong. The limit of R̂ is 1.01, or what one in a thousand sets of true draws exceeds (`ml.inference.mixing`),
if that is larger.

The weights of a network have symmetries that no chain explores, so that R̂ and ESS of its parameters say nothing. They
are those of log-likelihoods instead (`ml.inference.function_mixing`); the checks against the potential stay. Gradients
of a network may be too noisy for these to notice anything: then they do not pass.

Draws with importance weights are judged with them; R̂ and ESS judge the chains, so without. In models of more than 500
parameters, 500 chosen by a fixed seed are checked, and the warning says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.inference import stein
from ml.inference.function_mixing import FunctionMixing
from ml.inference.mixing import Mixing, measure_mixing
from ml.inference.stein import Check, CheckedDraws

_MAX_R_HAT = 1.01
_MIN_ESS_PER_CHAIN = 100
_MAX_CHECKED_PARAMETERS = 500
# A squared width this far from 1 must be noticed, or the gradients of a network tell too little.
_MAX_UNNOTICED_WIDTH = 0.5

_NOT_THESE_ROWS = (
    "these are not draws of the posterior given these rows. Check that rows, prior and model are those of the chain; "
    "else lower the step size or run longer"
)
_TOO_WIDE = (
    "lower the step size, raise batch_size or leave it out, or set preconditioned (some thousand parameters at most)"
)
_TOO_NARROW = "raise iterations, so that they reach all of it"


@dataclass(frozen=True)
class Diagnostics:
    """Diagnostics of a sample set. `warning` names the limits it misses and what to change; None if it meets all.

    `worst_parameter` is the index of the parameter that the warning names first. With `functions`, R̂ and ESS are those
    of log-likelihoods.
    """

    r_hat: float
    ess: float
    width: float
    mean_gradient: float
    mean_gradient_limit: float
    virial: float
    virial_limit: float
    worst_parameter: int | None
    undetectable: float
    warning: str | None
    functions: FunctionMixing | None = None

    @property
    def ok(self) -> bool:
        return self.warning is None


@dataclass(frozen=True)
class _Problem:
    """A limit that the draws miss, in words with a place for the name of the `parameter` that misses it most."""

    text: str
    parameter: int | None = None

    def describe(self, panel: Tensor, total: int) -> str:
        if self.parameter is None:
            return self.text
        return self.text.format(parameter=f"parameter {int(panel[self.parameter])} (from 0, of {total})")


@dataclass(frozen=True)
class _JudgedMixing:
    """Largest R̂ and smallest bulk effective sample size, and the limits that they miss."""

    r_hat: float
    ess: float
    problems: tuple[_Problem, ...]


def diagnose(
    draws: Tensor,
    gradients: Tensor,
    log_weights: Tensor | None = None,
    functions: FunctionMixing | None = None,
    exact_gradients: bool = True,
) -> Diagnostics:
    """Diagnose draws of shape (chains, draws, p), with log-weights (chains, draws) if they are not even.

    `gradients` (chains, m, p) are ∇U, or unbiased estimates of it, at m evenly spaced draws of each chain. `functions`
    take the place of the mixing of the parameters, for models with symmetries.
    """
    total, panel = draws.shape[2], _checked_parameters(draws.shape[2])
    checked = _checked_draws(draws[..., panel], gradients[..., panel], log_weights)
    mixing = _parameter_mixing(draws[..., panel]) if functions is None else _function_mixing(functions, checked)
    mean_gradient, virial = stein.check_mean_gradient(checked), stein.check_virial(checked)
    width = stein.check_width(checked)
    problems = [
        *mixing.problems,
        *_location_problems(checked, mean_gradient),
        *_spread_problems(checked, virial, width),
    ]
    worst = problems[0].parameter if problems else None
    undetectable = (
        stein.undetectable_divergence(checked)
        if functions is None
        else stein.typical_undetectable(checked, exact_gradients)
    )
    return Diagnostics(
        r_hat=mixing.r_hat,
        ess=mixing.ess,
        width=_width(width),
        mean_gradient=mean_gradient.deviation,
        mean_gradient_limit=mean_gradient.limit,
        virial=virial.deviation,
        virial_limit=virial.limit,
        worst_parameter=None if worst is None else int(panel[worst]),
        undetectable=undetectable * total / len(panel),
        warning=_warning(problems, panel, total),
        functions=functions,
    )


def least_undetectable(parameters: int, draws: int) -> float:
    """Return the divergence in nats that so many draws of a model with symmetries cannot exclude, at best."""
    panel = len(_checked_parameters(parameters))
    return stein.least_undetectable(panel, draws) * parameters / panel


def evenly_spaced_draws(draws: Tensor, count: int) -> Tensor:
    """Return `count` evenly spaced draws of each chain, the last draw among them."""
    length = draws.shape[1]
    return draws[:, [(length * (index + 1)) // count - 1 for index in range(count)]]


def _checked_parameters(parameters: int) -> Tensor:
    # Random, not every k-th: a fixed stride could meet the same column of each layer's weights.
    shuffled = torch.randperm(parameters, generator=torch.Generator().manual_seed(0))
    return shuffled[:_MAX_CHECKED_PARAMETERS].sort().values


def _checked_draws(draws: Tensor, gradients: Tensor, log_weights: Tensor | None) -> CheckedDraws:
    at = evenly_spaced_draws(draws, gradients.shape[1])
    if log_weights is None:
        return CheckedDraws(at, gradients, torch.ones(at.shape[:2], dtype=draws.dtype, device=draws.device))
    weights = evenly_spaced_draws(log_weights, gradients.shape[1]).flatten().softmax(0).view(at.shape[:2])
    return CheckedDraws(at, gradients, weights * weights.numel())


def _parameter_mixing(draws: Tensor) -> _JudgedMixing:
    mixing = measure_mixing(draws)
    return _JudgedMixing(mixing.r_hat, mixing.ess, tuple(_parameter_problems(mixing)))


def _parameter_problems(mixing: Mixing) -> Iterator[_Problem]:
    r_hat_limit, ess_limit = mixing.r_hat_limit(_MAX_R_HAT), _MIN_ESS_PER_CHAIN * mixing.chains
    if not mixing.r_hat <= r_hat_limit:
        yield _Problem(
            f"{{parameter}}: the chains disagree (R-hat {mixing.r_hat:.3f}, over {r_hat_limit:.3g}): "
            "raise burn_in and iterations, or start nearer the mode",
            mixing.worst,
        )
    if not mixing.ess >= ess_limit:
        yield _Problem(
            f"{{parameter}}: the draws are worth only {mixing.ess:.0f} independent ones "
            f"({ess_limit:.0f} needed): raise iterations together with thinning, or set preconditioned "
            "(some thousand parameters at most)",
            mixing.least,
        )


def _function_mixing(functions: FunctionMixing, checked: CheckedDraws) -> _JudgedMixing:
    problems = [_Problem(text) for text in functions.problems()]
    unnoticed = stein.unnoticed_width(checked)
    if not unnoticed <= _MAX_UNNOTICED_WIDTH:
        text = (
            f"the gradients are too noisy to tell draws {math.sqrt(1 + unnoticed):.2f} times too wide from those of "
            "the posterior: keep more draws, or register fewer rows"
        )
        problems.append(_Problem(text))
    return _JudgedMixing(functions.r_hat, functions.ess, tuple(problems))


def _location_problems(checked: CheckedDraws, mean_gradient: Check) -> Iterator[_Problem]:
    if not mean_gradient.passed:
        yield _Problem(
            f"{{parameter}}: the mean gradient is {mean_gradient.deviation:.1f} standard errors from 0 "
            f"(limit {mean_gradient.limit:.1f}): {_NOT_THESE_ROWS}",
            mean_gradient.parameter,
        )
        return
    joint = stein.check_joint_mean_gradient(checked)
    if joint is not None and not joint.passed:
        yield _Problem(
            f"the mean gradient of all parameters together is {joint.deviation:.1f} times as far from 0 as by chance "
            f"(squared, limit {joint.limit:.1f}), most so at {{parameter}}: {_NOT_THESE_ROWS}",
            joint.parameter,
        )


def _spread_problems(checked: CheckedDraws, virial: Check, width: Check) -> Iterator[_Problem]:
    if not width.passed:
        yield _Problem(
            f"the draws spread {_width(width):.2f} times as wide as the posterior: {_spread_remedy(width)}",
            virial.parameter,
        )
    if not virial.passed:
        yield _Problem(
            f"{{parameter}}: the draws are {_width(virial):.2f} times as wide as the posterior "
            f"({_in_errors(virial)}): {_spread_remedy(virial)}",
            virial.parameter,
        )
    directions = stein.check_directions(checked)
    if width.passed and virial.passed and directions is not None and not directions.passed:
        yield _Problem(
            f"along a direction, mostly of {{parameter}}, the draws are {_width(directions):.2f} times as wide as the "
            f"posterior ({_in_errors(directions)}): their correlations are not those of the posterior. "
            "Keep the draws of a sampler, not of an approximation; else run longer",
            directions.parameter,
        )


def _width(check: Check) -> float:
    # Where the potential is not convex, gradients at remote draws may point outwards. Such draws have no width.
    return math.sqrt(max(0.0, check.value))


def _in_errors(check: Check) -> str:
    return f"{check.deviation:.1f} standard errors off, limit {check.limit:.1f}"


def _spread_remedy(check: Check) -> str:
    return _TOO_WIDE if check.value > 1 else _TOO_NARROW


def _warning(problems: list[_Problem], panel: Tensor, total: int) -> str | None:
    if not problems:
        return None
    texts = [problem.describe(panel, total) for problem in problems]
    if len(panel) < total:
        texts.append(f"{len(panel)} of the {total} parameters were checked")
    return "; ".join(texts)
