"""Coverage of the intervals on sample-set certificates: random deletions from linear and logistic regressions.

Each trial draws data, chains that leave p(θ | S) exactly invariant, a group to forget and a map. `certify_samples`
estimates the divergence that `coverage_truth` computes. The affine map of a linear regression is left out: it is exact,
and every interval would cover its 0. Groups range from one row to three quarters of all rows, so that some maps fail
and their certificates must be refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor
from torch.func import grad, vmap

from benchmarks.certificates.coverage_truth import Affine, KnownPosterior, divergence_by_quadrature, gaussian_divergence
from ml.certify.samples import certify_moved
from ml.errors import InvalidInput
from ml.forgetting.retained import retained_rows
from ml.forgetting.samples import MovedSamples, affine_map, affine_map_matrix_free, shift
from ml.inference.diagnostics import Diagnostics, diagnose, evenly_spaced_draws
from ml.inference.laplace import fit_laplace
from ml.models.likelihood import Likelihood
from ml.models.linear import LinearRegression
from ml.models.logistic import LogisticRegression
from ml.models.potential import Potential
from ml.posteriors.sample_set import SampleSet

Map = Callable[[Likelihood, Tensor, Tensor, Tensor], MovedSamples]
OnProgress = Callable[[str, float], None]

MAPS: dict[str, Map] = {"affine": affine_map, "shift": shift, "matrix-free": affine_map_matrix_free}
CASES = (
    ("linear", "shift"),
    ("logistic", "affine"),
    ("linear", "matrix-free"),
    ("logistic", "shift"),
    ("logistic", "matrix-free"),
)
GROUPS = ("uniform", "clustered", "farthest")

_CHAINS = 4
_DRAWS_PER_CHAIN = 500
_BURN_IN = 50
_WIDTH_DRAWS = 100
_FEWEST_ROWS, _MOST_ROWS = 200, 500
_LARGEST_SHARE = 0.75
# Probability that a chain stays: draws worth as much as independent draws, half as much, and a third.
_STAY_PROBABILITIES = (0.0, 1 / 3, 1 / 2)
_HEAVY_TAIL = 0.7
"""Pareto k̂ above which every certificate must be refused."""


@dataclass(frozen=True)
class Trial:
    """One deletion: the true divergence and the certificate's interval, which is None if refused."""

    family: str
    map: str
    group: str
    removed: int
    n: int
    kl: float
    low: float | None
    epsilon: float | None
    k_hat: float
    reasons: tuple[str, ...]

    @property
    def issued(self) -> bool:
        return self.epsilon is not None

    @property
    def below(self) -> bool:
        return self.low is not None and self.kl < self.low

    @property
    def above(self) -> bool:
        return self.epsilon is not None and self.kl > self.epsilon


@dataclass(frozen=True)
class CoverageReport:
    """Coverage of the issued intervals: `share` cover the truth; for `above` the truth lies above the upper end."""

    trials: int
    issued: int
    covered: int
    above: int
    refused: int
    heavy_tailed: int
    refused_k_hat: int
    share: float
    seed: int
    outcomes: tuple[Trial, ...]

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON values, without the single trials."""
        fields = asdict(self)
        del fields["outcomes"]
        return {**fields, "share": self.share if self.issued else None}


def coverage(trials: int, seed: int, on_progress: OnProgress | None = None) -> CoverageReport:
    """Run random deletions and count the issued intervals that cover the truth."""
    if trials < 1:
        raise InvalidInput(f"trials is {trials}: pass at least 1")
    outcomes = []
    for index in range(trials):
        if on_progress is not None:
            on_progress("trials", index / trials)
        outcomes.append(_run_trial(index, torch.Generator().manual_seed(seed * 1_000_003 + index)))
    if on_progress is not None:
        on_progress("done", 1.0)
    return summarise(tuple(outcomes), seed)


def summarise(outcomes: tuple[Trial, ...], seed: int) -> CoverageReport:
    issued = [trial for trial in outcomes if trial.issued]
    heavy = [trial for trial in outcomes if not trial.k_hat <= _HEAVY_TAIL]
    covered = sum(not (trial.below or trial.above) for trial in issued)
    return CoverageReport(
        trials=len(outcomes),
        issued=len(issued),
        covered=covered,
        above=sum(trial.above for trial in issued),
        refused=len(outcomes) - len(issued),
        heavy_tailed=len(heavy),
        refused_k_hat=sum(not trial.issued for trial in heavy),
        share=covered / len(issued) if issued else math.nan,
        seed=seed,
        outcomes=outcomes,
    )


def _run_trial(index: int, generator: torch.Generator) -> Trial:
    family, name = CASES[index % len(CASES)]
    group = GROUPS[index // len(CASES) % len(GROUPS)]
    likelihood, data = _regression(family, generator)
    forgotten = _draw_group(group, data, generator)
    before, after = (_fit_posterior(likelihood, rows) for rows in (data, retained_rows(data, forgotten)))
    samples, diagnostics = _sample_chains(before, generator)
    moved, moved_by = _move_samples(MAPS[name], likelihood, samples.samples, data, forgotten)
    certificate = certify_moved(likelihood, samples, moved, data, forgotten, diagnostics, seed=index).certificate
    truth = gaussian_divergence if family == "linear" else divergence_by_quadrature
    low, high = certificate.interval or (None, None)
    return Trial(
        family=family,
        map=name,
        group=group,
        removed=len(forgotten),
        n=len(data),
        kl=truth(before, after, moved_by),
        low=low,
        epsilon=high,
        k_hat=certificate.constants.k_hat,
        reasons=certificate.reasons,
    )


def _regression(family: str, generator: torch.Generator) -> tuple[Likelihood, Tensor]:
    """Draw two or three correlated features of unequal scale, with targets from random weights."""
    n = int(torch.randint(_FEWEST_ROWS, _MOST_ROWS + 1, (), generator=generator))
    d = int(torch.randint(2, 4, (), generator=generator))
    x = _normal((n, d), generator) @ (torch.eye(d, dtype=torch.float64) + 0.4 * _normal((d, d), generator))
    signal = x @ _normal((d,), generator)
    if family == "linear":
        y = signal + _normal((n,), generator)
        return LinearRegression(d, noise_std=1.0, prior_std=1.0), torch.cat([x, y.unsqueeze(1)], 1)
    y = (torch.rand(n, generator=generator, dtype=torch.float64) < signal.sigmoid()).double()
    return LogisticRegression(d, prior_std=1.0), torch.cat([x, y.unsqueeze(1)], 1)


def _draw_group(kind: str, data: Tensor, generator: torch.Generator) -> Tensor:
    """Draw random rows, the neighbours of one row, or the outermost rows. All magnitudes are equally likely."""
    chance = float(torch.rand((), generator=generator))
    size = max(1, round(math.exp(chance * math.log(_LARGEST_SHARE * len(data)))))
    if kind == "uniform":
        return torch.randperm(len(data), generator=generator)[:size]
    x = data[:, :-1]
    centre = x[int(torch.randint(len(x), (), generator=generator))] if kind == "clustered" else x.mean(0)
    order: Tensor = (x - centre).norm(dim=1).argsort(descending=kind == "farthest")
    return order[:size]


def _fit_posterior(likelihood: Likelihood, rows: Tensor) -> KnownPosterior:
    potential = Potential(likelihood, rows)
    return KnownPosterior(potential, fit_laplace(potential, rows.new_zeros(likelihood.parameter_count)))


def _sample_chains(posterior: KnownPosterior, generator: torch.Generator) -> tuple[SampleSet, Diagnostics]:
    """Run Metropolis chains, whose stationary law is the posterior itself, without discretisation error.

    Proposals are draws of the Laplace fit, independent of the state, so all weights e^(-U) / density are computed at
    once. Staying makes neighbouring draws equal, which adds autocorrelation.
    """
    stay = _STAY_PROBABILITIES[int(torch.randint(len(_STAY_PROBABILITIES), (), generator=generator))]
    steps = _BURN_IN + _DRAWS_PER_CHAIN
    noise = _normal((steps * _CHAINS, len(posterior.laplace.mode)), generator)
    proposals = posterior.from_white(noise)
    log_weights = (0.5 * noise.square().sum(1) - posterior.values(proposals)).view(steps, _CHAINS)
    chance = torch.rand(2, steps, _CHAINS, generator=generator, dtype=torch.float64)
    state, states = torch.zeros(_CHAINS, dtype=torch.int64), []
    for step in range(steps):
        gain = log_weights[step] - log_weights.gather(0, state.unsqueeze(0)).squeeze(0)
        moves = (chance[0, step] >= stay) & (chance[1, step].log() < gain)
        state = torch.where(moves, step, state)
        states.append(state)
    steps_kept = torch.stack(states[_BURN_IN:], 1)  # (chains, draws)
    draws = proposals.view(steps, _CHAINS, -1)[steps_kept, torch.arange(_CHAINS).unsqueeze(1)]
    slopes = vmap(vmap(grad(posterior.potential.value)))(evenly_spaced_draws(draws, _WIDTH_DRAWS))
    return SampleSet(draws.flatten(0, 1), torch.arange(_CHAINS).repeat_interleave(_DRAWS_PER_CHAIN)), diagnose(
        draws, slopes
    )


def _move_samples(
    move: Map, likelihood: Likelihood, samples: Tensor, data: Tensor, forgotten: Tensor
) -> tuple[MovedSamples, Affine]:
    """Return the moved samples and the affine map, which 2d moved points around the mean determine."""
    centre, reach = samples.mean(0), torch.diag(samples.std(0))
    ends = move(likelihood, torch.cat([centre + reach, centre - reach]), data, forgotten)
    above, below = ends.samples.chunk(2)
    slope = ((above - below) / 2 / samples.std(0).unsqueeze(1)).T
    moved_by = Affine(slope, centre, ends.samples.mean(0))
    return replace(ends, samples=moved_by.forwards(samples)), moved_by


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)
