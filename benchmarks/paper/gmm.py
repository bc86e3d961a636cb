"""The paper's first experiment: a mixture of four classes, with 800 of 2,000 points forgotten (its section 7.1).

For variational inference the truth is the converged optimum on the retained rows. For sample sets it is the retained
posterior itself, drawn without a chain: Laplace draws, importance-resampled, many more than a set holds. A finite set
is never exact, so "retrained" (fresh chains on the retained rows) is the floor for every method. The chains before and
the fresh chains share their noise, set by set. Chance then affects both alike, and their ratio is known far better
than either divergence.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import T, timed
from ml.baselines.paper import PAPER_RECIPE, forget_samples, forget_variational
from ml.errors import InvalidInput
from ml.forgetting.retained import retained_rows
from ml.forgetting.samples import affine_map
from ml.inference.chains import SAFE_SGHMC, SAFE_SGLD, Chains, Sampled, sample
from ml.inference.laplace import fit_laplace
from ml.inference.variational import train
from ml.ladder.policy import Policy
from ml.ladder.variational import forget
from ml.models.gmm import GaussianMixture
from ml.models.potential import Potential
from ml.models.synthetic import synthetic_mixture
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.posteriors.sample_set import SampleSet
from ml.solvers import solve, solve_neumann

ROWS = 2000
FAMILY = GaussianMixture(components=4, dimensions=2, prior_std=1.0)
SAMPLERS = {"gmm-sgld": SAFE_SGLD, "gmm-sghmc": SAFE_SGHMC}
CASES = ("gmm-vi", *SAMPLERS)
LARGEST_SHARE = 0.9
"""Largest share of a class to remove: with fewer rows left, a component loses its basin."""
POLICY = Policy(1e-9)
"""Policy that our method must meet."""
RETRAINING_TOLERANCE = 1e-6
"""Step length at which retraining stops: with posterior widths of at least 0.04, the divergence is within POLICY."""
SETS = 16
"""Independent sample sets per average: in a single set, chance makes up a fifth of the divergence."""
DRAWS = 500
"""Draws per sample set, as in the paper."""
THINNING = 12
TRUE_DRAWS = 20_000
REPEATS = 15

OnProgress = Callable[[str, float], None]


@dataclass(frozen=True)
class Way:
    """Result of one method of removing rows: distance to the truth, and seconds.

    `kl_error` is the standard error of `kl` over sample sets; 0 for deterministic methods.
    """

    name: str
    kl: float
    distance: float
    seconds: float
    centres: list[list[float]]
    kl_error: float = 0.0


@dataclass(frozen=True)
class Comparison:
    case: str
    removed: int
    n: int
    ways: dict[str, Way]
    residual_ours: float
    residual_paper: float
    warning: str | None
    """Warning of the sampler's diagnostics."""
    over_floor: float | None = None
    """For sample sets: KL of our method over KL of retraining."""
    over_floor_error: float | None = None
    """Standard error of the ratio, from the pairs of sets that share their noise."""

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Comparison:
        """Inverse of `dataclasses.asdict`."""
        return cls(**{**stored, "ways": {name: Way(**way) for name, way in stored["ways"].items()}})


def compare(case: str, removed: int = 800, seed: int = 1, on_progress: OnProgress | None = None) -> Comparison:
    """Compare doing nothing, the paper's method, ours and retraining in one run."""
    if case not in CASES:
        raise InvalidInput(f"unknown case {case!r}: choose among {', '.join(CASES)}")
    scene = _scene(removed, seed)
    report = on_progress or (lambda _stage, _fraction: None)
    if case == "gmm-vi":
        return _compare_variational(scene, seed, report)
    return _compare_sampled(case, scene, seed, report)


@dataclass(frozen=True, eq=False)
class Scene:
    """Data, rows to forget, and the optimum trained on all rows."""

    data: Tensor
    forgotten: Tensor
    retained: Tensor
    before: MeanFieldGaussian
    hessian: Tensor  # over all rows, returned by training


def forgotten_rows(data: Tensor, labels: Tensor, removed: int) -> Tensor:
    """Return the uppermost rows of two classes, half from each, as in the paper: their centres must move."""
    classes = [torch.nonzero(labels == label).flatten() for label in (0, 1)]
    if not 1 <= removed <= 2 * LARGEST_SHARE * min(len(rows) for rows in classes):
        raise InvalidInput(f"{removed} rows cannot be removed from two classes of {len(classes[0])}: pass fewer")
    first, second = (rows[data[rows, 1].argsort(descending=True)] for rows in classes)
    return torch.cat([first[: (removed + 1) // 2], second[: removed // 2]])


def _scene(removed: int, seed: int) -> Scene:
    data, labels = synthetic_mixture(ROWS, seed=seed)
    forgotten = forgotten_rows(data, labels, removed)
    before = train(FAMILY, data, FAMILY.initial(data, seed), tolerance=0.0)
    return Scene(data, forgotten, retained_rows(data, forgotten), before.posterior, before.hessian)


def _compare_variational(scene: Scene, seed: int, report: OnProgress) -> Comparison:
    def retrain() -> MeanFieldGaussian:
        # From scratch: neither the old model nor the forgotten rows may enter, so the start is computed here.
        # Training stops once a step is within policy; our method must also prove it.
        return train(FAMILY, scene.retained, FAMILY.initial(scene.retained, seed), RETRAINING_TOLERANCE).posterior

    def forget_ours() -> MeanFieldGaussian:
        return forget(
            FAMILY, scene.before, scene.data, scene.forgotten, POLICY, hessian=scene.hessian, examine_reference=False
        ).posterior

    report("retraining and our method", 0.0)
    (seconds_retrain, retrained), (seconds_ours, ours) = _timed(retrain, forget_ours)
    retrained = _match_components(retrained, ours)
    truth = train(FAMILY, scene.retained, retrained, tolerance=0.0).posterior
    report("the paper's method", 0.3)
    forget_variational(
        FAMILY, scene.before, scene.data, scene.forgotten[:1]
    )  # warm-up: the first differentiation loads much
    seconds_paper, paper = timed(lambda: forget_variational(FAMILY, scene.before, scene.data, scene.forgotten))
    report("done", 1.0)

    def way(name: str, posterior: MeanFieldGaussian, seconds: float) -> Way:
        distance = float((posterior.flat() - truth.flat()).norm())
        return Way(name, posterior.kl(truth), distance, seconds, posterior.mean.tolist())

    ways = [
        way("nothing", scene.before, 0.0),
        way("paper", paper, seconds_paper),
        way("ours", ours, seconds_ours),
        way("retrained", retrained, seconds_retrain),
    ]
    residuals = _variational_residuals(scene)
    return Comparison("gmm-vi", len(scene.forgotten), ROWS, {w.name: w for w in ways}, *residuals, warning=None)


def _match_components(posterior: MeanFieldGaussian, like: MeanFieldGaussian) -> MeanFieldGaussian:
    """Reorder the components of a mixture to match another one; their order has no meaning."""
    order = min(
        itertools.permutations(range(FAMILY.components)),
        key=lambda order: float((posterior.mean[list(order)] - like.mean).square().sum()),
    )
    return MeanFieldGaussian(posterior.mean[list(order)], posterior.std[list(order)])


def _compare_sampled(case: str, scene: Scene, seed: int, report: OnProgress) -> Comparison:
    config, mode = _shorten(SAMPLERS[case]), scene.before.mean.flatten()

    def draw(rows: Tensor, sets: int, stage: str) -> Sampled:
        wider, generator = replace(config, count=config.count * sets), torch.Generator().manual_seed(seed + 1)
        return sample(FAMILY, rows, mode, wider, generator, lambda i, _: report(stage, i / config.iterations))

    chains = draw(scene.data, SETS, "sampling before")
    before = _split(chains.sample_set, config)
    fresh = _split(draw(scene.retained, SETS, "sampling the retained posterior").sample_set, config)
    seconds_retrain, _ = timed(lambda: draw(scene.retained, 1, "timing one retraining"))
    report("drawing the truth", 0.0)
    truth = _truth(scene.retained, mode, torch.Generator().manual_seed(seed + 2))
    report("our method", 0.0)
    ((seconds_ours, _),) = _timed(lambda: affine_map(FAMILY, before[0].samples, scene.data, scene.forgotten))
    ours = [_with_samples(s, affine_map(FAMILY, s.samples, scene.data, scene.forgotten).samples) for s in before]
    report("the paper's method", 0.0)
    seconds_paper, shifted = timed(lambda: _paper_shift(scene, before[0], seed))
    paper = [_with_samples(s, s.samples + shifted) for s in before]
    report("done", 1.0)

    def way(name: str, sets: Sequence[SampleSet], seconds: float) -> Way:
        divergences = [s.moment_matched_kl(truth) for s in sets]
        distance = statistics.mean(float((s.mean - truth.mean).norm()) for s in sets)
        centres = sets[0].mean.reshape(FAMILY.components, -1).tolist()
        return Way(name, statistics.mean(divergences), distance, seconds, centres, _standard_error(divergences))

    ways = [
        way("nothing", before, 0.0),
        way("paper", paper, seconds_paper),
        way("ours", ours, seconds_ours),
        way("retrained", fresh, seconds_retrain),
    ]
    residuals, warning = _sampled_residuals(scene, before[0]), chains.diagnostics.warning
    over = _ratio([s.moment_matched_kl(truth) for s in ours], [s.moment_matched_kl(truth) for s in fresh])
    return Comparison(case, len(scene.forgotten), ROWS, {w.name: w for w in ways}, *residuals, warning, *over)


def _standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))


def _ratio(values: Sequence[float], floors: Sequence[float]) -> tuple[float, float]:
    """Return the ratio of the two means and its standard error to first order."""
    floor = statistics.mean(floors)
    ratio = statistics.mean(values) / floor
    return ratio, _standard_error([value - ratio * each for value, each in zip(values, floors, strict=True)]) / floor


def _paper_shift(scene: Scene, draws: SampleSet, seed: int) -> Tensor:
    """Return the shift that the paper applies to every sample; its recursion starts from one set."""
    generator = torch.Generator().manual_seed(seed + 3)
    return (forget_samples(FAMILY, draws.samples, scene.data, scene.forgotten, generator) - draws.samples)[0]


def _variational_residuals(scene: Scene) -> tuple[float, float]:
    """Return ‖v - Hx‖/‖v‖ of the first solve: ours and the paper's."""
    hessian = FAMILY.expand(scene.before, scene.data).hessian
    whole = FAMILY.group_gradient(scene.before, scene.data[scene.forgotten])
    group = FAMILY.group_gradient(scene.before, scene.data[scene.forgotten[: PAPER_RECIPE.group_size]])
    neumann = solve_neumann(lambda v: hessian @ v, group, PAPER_RECIPE.num_terms, 1 / ROWS)
    return solve(hessian, whole).residual / float(whole.norm()), neumann.residual / float(group.norm())


def _sampled_residuals(scene: Scene, draws: SampleSet) -> tuple[float, float]:
    hessian = Potential(FAMILY, scene.data).hessian(draws.mean)
    rows = scene.data[scene.forgotten[: PAPER_RECIPE.group_size]]
    group = Potential(FAMILY, rows, with_prior=False).gradient(draws.mean)
    neumann = solve_neumann(lambda v: hessian @ v, group, PAPER_RECIPE.num_terms, 1 / ROWS)
    return solve(hessian, group).residual / float(group.norm()), neumann.residual / float(group.norm())


def _split(whole: SampleSet, config: Chains) -> list[SampleSet]:
    """Split one run of many chains into sets of `config.count` chains."""
    number = whole.chain // config.count
    return [SampleSet(whole.samples[number == i], whole.chain[number == i]) for i in range(int(number.max()) + 1)]


def _shorten(config: Chains) -> Chains:
    """Shorten the sampler's run to DRAWS draws, thinned to be independent."""
    return replace(config, iterations=config.burn_in + DRAWS // config.count * THINNING, thinning=THINNING)


def _truth(rows: Tensor, start: Tensor, generator: torch.Generator) -> SampleSet:
    """Return independent draws of p(θ | rows): Laplace draws, resampled with weights w ∝ p(θ, rows) / N(θ)."""
    potential = Potential(FAMILY, rows)
    laplace = fit_laplace(potential, start)
    noise = torch.randn(TRUE_DRAWS, len(start), generator=generator, dtype=torch.float64)
    factor = torch.linalg.cholesky(laplace.hessian)
    theta = laplace.mode + torch.linalg.solve_triangular(factor.T, noise.T, upper=True).T
    log_weights = 0.5 * noise.square().sum(1) - torch.stack([potential.value(draw) for draw in theta])
    indices = torch.multinomial(torch.softmax(log_weights, 0), TRUE_DRAWS, replacement=True, generator=generator)
    return SampleSet(theta[indices], torch.zeros(TRUE_DRAWS, dtype=torch.int64))


def _with_samples(before: SampleSet, samples: Tensor) -> SampleSet:
    return SampleSet(samples, before.chain)


def _timed(*actions: Callable[[], T]) -> list[tuple[float, T]]:
    """Return median seconds and result of each action, after a warm-up. Actions alternate, so disturbances hit all."""
    results = [action() for action in actions]
    rounds = [[timed(action)[0] for action in actions] for _ in range(REPEATS)]
    return [(statistics.median(taken), result) for *taken, result in zip(*rounds, results, strict=True)]
