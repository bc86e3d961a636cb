"""Wrong sample sets: draws of something else than the posterior they are registered for must not be certified.

Each kind is a recipe for the posterior and for the wrong draws. Right draws of the same posterior, as many and of the
same shape, give the rate of false alarms. Draws 1.08 times too wide are wrong by 0.0062 nats a parameter. Too few draws
cannot tell, and then the certificate's epsilon must not be below the divergence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

import ml
from benchmarks.certificates.audit.extended import Array
from benchmarks.certificates.audit.sample_truth import Regression, sample
from benchmarks.certificates.audit.sequences import build_model, draw_regression, forget_draws, sample_set
from ml.errors import ForgettingError

OnProgress = Callable[[str, float], None]

SLIGHTLY_WIDE = "1.08 times too wide"
_CHAINS, _DRAWS = 4, 500
_LARGE_EPSILON = 10.0
"""Policy of these deletions: larger than any estimate, so that nothing but the checks of the draws refuses."""


@dataclass(frozen=True)
class Recipe:
    """Draws a posterior, and turns it into wrong draws (chains, length, p)."""

    posterior: Callable[[np.random.Generator], Regression]
    draws: Callable[[Regression, np.random.Generator], Array]


@dataclass(frozen=True)
class WrongTrial:
    """One wrong set and one right set of a kind. `divergence` is KL(wrong ‖ right) in nats for 1.08, else NaN."""

    kind: str
    certified: bool
    epsilon: float
    divergence: float
    false_alarm: bool


def audit_wrong_samples(count: int, seed: int, on_progress: OnProgress) -> list[WrongTrial]:
    """Judge `count` wrong and right sets of each kind."""
    trials = []
    for number, kind in enumerate(RECIPES):
        for index in range(count):
            on_progress(kind, (number + index / count) / len(RECIPES))
            trials.append(judge_kind(kind, np.random.default_rng([seed, 2, number, index])))
    return trials


def judge_kind(kind: str, rng: np.random.Generator) -> WrongTrial:
    recipe = RECIPES[kind]
    posterior = recipe.posterior(rng)
    model, rows = build_model(posterior), torch.from_numpy(posterior.rows)
    wrong, right = recipe.draws(posterior, rng), _right(posterior, rng)
    epsilon = _certified_epsilon(model, sample_set(wrong), posterior.rows)
    return WrongTrial(
        kind=kind,
        certified=math.isfinite(epsilon),
        epsilon=epsilon,
        divergence=_width_divergence(1.08, posterior.parameters) if kind == SLIGHTLY_WIDE else math.nan,
        false_alarm="estimated" not in ml.readiness(model, sample_set(right), rows).levels,
    )


def _certified_epsilon(model: ml.Family, samples: ml.SampleSet, rows: Array) -> float:
    """Return epsilon of the certificate for forgetting the first row, infinite if none is issued."""
    try:
        outcome = forget_draws(model, samples, rows, np.arange(1), _LARGE_EPSILON)
    except ForgettingError:
        return math.inf
    return outcome.certificate.epsilon if outcome.certificate.level == "estimated" else math.inf


def _width_divergence(ratio: float, parameters: int) -> float:
    """Return KL between a Gaussian widened by the ratio and the Gaussian itself."""
    return parameters * (ratio**2 - 1 - 2 * math.log(ratio)) / 2


def _small(rng: np.random.Generator) -> Regression:
    """Draw 2 to 5 parameters, linear or logistic."""
    return draw_regression(int(rng.integers(100, 300)), int(rng.integers(2, 6)), rng.random() < 0.5, rng)


def _fifty_parameters(rng: np.random.Generator) -> Regression:
    return draw_regression(300, 50, False, rng, mixing=0.05)


def _correlated(rng: np.random.Generator) -> Regression:
    """Draw five features with a correlation of 0.9 between any two."""
    plain = draw_regression(200, 5, False, rng, mixing=0.0)
    features = math.sqrt(0.1) * plain.rows[:, :-1] + math.sqrt(0.9) * rng.normal(size=(200, 1))
    return Regression(np.column_stack([features, plain.rows[:, -1]]), 1.0, 1.0)


def _skewed(rng: np.random.Generator) -> Regression:
    """Draw a logistic regression of few rows under a wide prior."""
    return draw_regression(12, 2, True, rng, prior_std=5.0)


def _few_rows(rng: np.random.Generator) -> Regression:
    return draw_regression(15, 5, rng.random() < 0.5, rng)


def _right(posterior: Regression, rng: np.random.Generator) -> Array:
    return sample(posterior, _CHAINS, _DRAWS, 0.0, rng)


def _shifted(posterior: Regression, rng: np.random.Generator) -> Array:
    """Move all draws by three standard deviations of one parameter."""
    draws = _right(posterior, rng)
    draws[:, :, 0] += 3 * draws[:, :, 0].std()
    return draws


def _other_rows(posterior: Regression, rng: np.random.Generator) -> Array:
    """Draw the posterior of as many rows drawn from these with replacement: about a third of them are missing."""
    rows = posterior.rows[rng.integers(0, len(posterior.rows), len(posterior.rows))]
    return _right(Regression(rows, posterior.prior_std, posterior.noise_std), rng)


def _one_direction(posterior: Regression, rng: np.random.Generator) -> Array:
    """Widen the draws three times along one random direction of the standardised parameters."""
    draws = _right(posterior, rng)
    centre, factor = draws.mean((0, 1)), np.linalg.cholesky(np.cov(draws.reshape(-1, draws.shape[2]).T))
    direction: Array = rng.normal(size=(draws.shape[2],))
    direction = direction / np.linalg.norm(direction)
    white = np.linalg.solve(factor, (draws - centre).reshape(-1, draws.shape[2]).T).T
    widened = white + 2 * np.outer(white @ direction, direction)
    return np.asarray((centre + widened @ factor.T).reshape(draws.shape))


def _mean_field(posterior: Regression, rng: np.random.Generator) -> Array:
    """Draw the best Gaussian of independent parameters."""
    mode, hessian = posterior.mode()
    return np.asarray(mode + rng.normal(size=(_CHAINS, _DRAWS, len(mode))) / np.sqrt(hessian.diagonal()))


def _laplace(posterior: Regression, rng: np.random.Generator) -> Array:
    mode, hessian = posterior.mode()
    root = np.linalg.inv(np.linalg.cholesky(hessian))
    return np.asarray(mode + rng.normal(size=(_CHAINS, _DRAWS, len(mode))) @ root)


def _one_point(posterior: Regression, rng: np.random.Generator) -> Array:
    """Repeat one draw, with a little noise as from a chain that hardly moves."""
    draws = _right(posterior, rng)
    return np.asarray(draws[0, 0] + 1e-3 * (draws - draws.mean((0, 1))))


def _few_points(posterior: Regression, rng: np.random.Generator) -> Array:
    """Repeat five draws in random order."""
    points = _right(posterior, rng)[0, :5]
    return points[rng.integers(0, 5, (_CHAINS, _DRAWS))]


def _never_mixed(posterior: Regression, rng: np.random.Generator) -> Array:
    """Keep each chain, of half the width, near a draw of its own."""
    draws = _right(posterior, rng)
    return np.asarray(draws[:, :1] + (draws - draws.mean((0, 1))) / 2)


def _scaled(ratio: float) -> Callable[[Regression, np.random.Generator], Array]:
    def draw(posterior: Regression, rng: np.random.Generator) -> Array:
        draws = _right(posterior, rng)
        centre = draws.mean((0, 1))
        return np.asarray(centre + ratio * (draws - centre))

    return draw


def _prior(posterior: Regression, rng: np.random.Generator) -> Array:
    return posterior.prior_std * rng.normal(size=(_CHAINS, _DRAWS, posterior.parameters))


def _wrong_prior(posterior: Regression, rng: np.random.Generator) -> Array:
    """Draw the posterior under a prior four times as wide."""
    return _right(Regression(posterior.rows, 4 * posterior.prior_std, posterior.noise_std), rng)


RECIPES: dict[str, Recipe] = {
    "shifted by 3 sd": Recipe(_small, _shifted),
    "posterior of other rows": Recipe(_small, _other_rows),
    "one direction of 50 three times too wide": Recipe(_fifty_parameters, _one_direction),
    "mean-field draws": Recipe(_correlated, _mean_field),
    "Laplace draws of a skewed posterior": Recipe(_skewed, _laplace),
    "copies of one point": Recipe(_small, _one_point),
    "five distinct points": Recipe(_small, _few_points),
    "chains that never mixed": Recipe(_small, _never_mixed),
    "half as wide": Recipe(_small, _scaled(0.5)),
    "prior draws": Recipe(_small, _prior),
    "wrong prior": Recipe(_few_rows, _wrong_prior),
    SLIGHTLY_WIDE: Recipe(_small, _scaled(1.08)),
}
