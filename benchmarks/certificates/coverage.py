"""Coverage of the intervals on sample-set certificates: random deletions from linear and logistic regressions.

Each trial draws data, chains that leave p(θ | S) exactly invariant, a group to forget, in how many deletions, and a
method: a map, or weights alone. The certificate of the last deletion is compared with the truth that `coverage_truth`
computes for the composed map:

    draws            KL(law of the draws ‖ retained posterior)
    weighted draws   E_R log(1 + (w-1)/N), which bounds KL(retained posterior ‖ a draw picked by its weight w), N the
                     number of independent draws that the chains are worth

The affine map of a linear regression is left out: it is exact, and every interval would cover its 0. Groups range from
one row to three quarters of all rows, so that some methods fail and their certificates must be refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import grad, vmap

from benchmarks.certificates.coverage_summary import CoverageReport, Trial, summarise
from benchmarks.certificates.coverage_truth import (
    Affine,
    KnownPosterior,
    divergence_by_quadrature,
    gaussian_divergence,
    picked_divergence,
)
from ml.certify.certificate import Certificate
from ml.certify.importance import weigh_moved, weigh_unmoved
from ml.certify.samples import certify_moved, certify_reweighted, get_reading
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
from vocabulary.posterior_kinds import Reading

Map = Callable[[Likelihood, Tensor, Tensor, Tensor, Tensor], MovedSamples]
OnProgress = Callable[[str, float], None]

MAPS: dict[str, Map] = {"affine": affine_map, "shift": shift, "matrix-free": affine_map_matrix_free}
REWEIGHT = "reweight"
CASES = (
    ("linear", "shift"),
    ("logistic", "affine"),
    ("linear", "matrix-free"),
    ("logistic", REWEIGHT),
    ("logistic", "shift"),
    ("logistic", "matrix-free"),
    ("linear", REWEIGHT),
)
GROUPS = ("uniform", "clustered", "farthest")
LENGTHS = (1, 10, 1, 50, 1, 10, 1, 1, 10, 1, 200, 1, 10, 1, 50, 1, 1, 10, 1, 10, 1, 50, 1, 10, 1)
"""Numbers of deletions, for trials in turn: long sequences take long, and are rarer."""

_CHAINS = 4
_DRAWS_PER_CHAIN = 500
_BURN_IN = 50
_WIDTH_DRAWS = 100
_FEWEST_ROWS, _MOST_ROWS = 300, 500
_LARGEST_SHARE = 0.75
# Probability that a chain stays: draws worth as much as independent draws, half as much, and a third.
_STAY_PROBABILITIES = (0.0, 1 / 3, 1 / 2)


def coverage(trials: int, seed: int, on_progress: OnProgress | None = None) -> CoverageReport:
    """Run random sequences of deletions and count the issued intervals that cover the truth."""
    if trials < 1:
        raise InvalidInput(f"trials is {trials}: pass at least 1")
    outcomes: list[Trial] = []
    for index in range(trials):
        if on_progress is not None:
            on_progress("trials", index / trials)
        outcomes += _run_trial(index, torch.Generator().manual_seed(seed * 1_000_003 + index))
    if on_progress is not None:
        on_progress("done", 1.0)
    return summarise(trials, tuple(outcomes), seed)


@dataclass(frozen=True, eq=False)
class _Deletions:
    """Deletions of one trial: the parts of a group, one after another, each by the same method."""

    family: str
    method: str
    group: str
    likelihood: Likelihood
    data: Tensor
    parts: tuple[Tensor, ...]
    worth: float
    seed: int

    @property
    def removed(self) -> Tensor:
        return torch.cat(self.parts)


def _run_trial(index: int, generator: torch.Generator) -> list[Trial]:
    """Return the judged certificates of one trial: one for each reading that is issued, or one that is refused."""
    (family, method), turn = CASES[index % len(CASES)], index // len(CASES)
    group, length = GROUPS[(index + turn) % len(GROUPS)], LENGTHS[turn % len(LENGTHS)]
    return run_case(family, method, group, length, index, generator)


def run_case(family: str, method: str, group: str, length: int, index: int, generator: torch.Generator) -> list[Trial]:
    """Run one sequence of deletions from a regression, and judge its certificates."""
    likelihood, data = draw_regression(family, generator)
    parts = _draw_group(group, data, length, generator).tensor_split(length)
    stay = _STAY_PROBABILITIES[int(torch.randint(len(_STAY_PROBABILITIES), (), generator=generator))]
    deletions = _Deletions(family, method, group, likelihood, data, parts, (1 - stay) / (1 + stay), index)
    before = _fit_posterior(likelihood, data)
    samples, diagnostics = _sample_chains(before, stay, generator)
    sequence = _forget(deletions, samples)
    trials = [_judge(deletions, before, sequence, sequence.certify(diagnostics, limit)) for limit in (math.inf, 0.0)]
    return trials[:1] if trials[0].reading == trials[1].reading else [trial for trial in trials if trial.issued]


@dataclass(frozen=True, eq=False)
class _Sequence:
    """Samples before the last deletion, and the map composed of all."""

    deletions: _Deletions
    samples: SampleSet
    rows: Tensor
    forgotten: Tensor
    moved: MovedSamples | None
    moved_by: Affine

    def certify(self, diagnostics: Diagnostics, limit: float) -> Certificate:
        arguments = self.rows, self.forgotten, diagnostics, limit, self.deletions.seed
        if self.moved is None:
            return certify_reweighted(self.deletions.likelihood, self.samples, *arguments).certificate
        return certify_moved(self.deletions.likelihood, self.samples, self.moved, *arguments).certificate


def _forget(deletions: _Deletions, samples: SampleSet) -> _Sequence:
    """Weigh the samples after every deletion but the last, which is left to the certificate."""
    likelihood, moved_by = deletions.likelihood, _identity(samples)
    remaining = torch.arange(len(deletions.data))
    for part in deletions.parts:
        rows, forgotten = deletions.data[remaining], torch.isin(remaining, part).nonzero().flatten()
        moved = None
        if deletions.method != REWEIGHT:
            moved, step = _move_samples(MAPS[deletions.method], likelihood, samples, rows, forgotten)
            moved_by = moved_by.followed_by(step)
        sequence = _Sequence(deletions, samples, rows, forgotten, moved, moved_by)
        remaining = remaining[~torch.isin(remaining, part)]
        if part is not deletions.parts[-1]:
            samples = _weigh(sequence, deletions.data[remaining])
    return sequence


def _weigh(sequence: _Sequence, retained: Tensor) -> SampleSet:
    likelihood = sequence.deletions.likelihood
    if sequence.moved is None:
        return weigh_unmoved(likelihood, sequence.samples, sequence.rows[sequence.forgotten])
    return weigh_moved(likelihood, sequence.samples, sequence.moved, sequence.rows, retained)


def _judge(deletions: _Deletions, before: KnownPosterior, sequence: _Sequence, certificate: Certificate) -> Trial:
    constants, reading = certificate.constants, get_reading(certificate)
    after = _fit_posterior(deletions.likelihood, retained_rows(deletions.data, deletions.removed))
    low, epsilon = certificate.interval or (None, None)
    return Trial(
        family=deletions.family,
        method=deletions.method,
        group=deletions.group,
        deletions=len(deletions.parts),
        removed=len(deletions.removed),
        n=len(deletions.data),
        reading=reading,
        truth=_truth(deletions, before, after, sequence.moved_by, reading),
        low=low,
        high=None if epsilon is None else epsilon - constants.undetectable,
        epsilon=epsilon,
        k_hat=constants.k_hat,
        relative_ess=constants.relative_ess,
        reasons=certificate.reasons,
    )


def _truth(
    deletions: _Deletions, before: KnownPosterior, after: KnownPosterior, moved_by: Affine, reading: Reading
) -> float:
    if reading == "weighted draws":
        return picked_divergence(before, after, moved_by, deletions.worth * _CHAINS * _DRAWS_PER_CHAIN)
    truth = gaussian_divergence if deletions.family == "linear" else divergence_by_quadrature
    return truth(before, after, moved_by)


def draw_regression(
    family: str, generator: torch.Generator, dimensions: int | None = None
) -> tuple[LinearRegression | LogisticRegression, Tensor]:
    """Draw two or three correlated features of unequal scale, with targets from random weights."""
    n = int(torch.randint(_FEWEST_ROWS, _MOST_ROWS + 1, (), generator=generator))
    d = int(torch.randint(2, 4, (), generator=generator)) if dimensions is None else dimensions
    x = _normal((n, d), generator) @ (torch.eye(d, dtype=torch.float64) + 0.4 * _normal((d, d), generator))
    signal = x @ _normal((d,), generator)
    if family == "linear":
        y = signal + _normal((n,), generator)
        return LinearRegression(d, noise_std=1.0, prior_std=1.0), torch.cat([x, y.unsqueeze(1)], 1)
    y = (torch.rand(n, generator=generator, dtype=torch.float64) < signal.sigmoid()).double()
    return LogisticRegression(d, prior_std=1.0), torch.cat([x, y.unsqueeze(1)], 1)


def _draw_group(kind: str, data: Tensor, fewest: int, generator: torch.Generator) -> Tensor:
    """Draw random rows, the neighbours of one row, or the outermost rows. All magnitudes are equally likely."""
    chance = float(torch.rand((), generator=generator))
    size = round(fewest * (_LARGEST_SHARE * len(data) / fewest) ** chance)
    if kind == "uniform":
        return torch.randperm(len(data), generator=generator)[:size]
    x = data[:, :-1]
    centre = x[int(torch.randint(len(x), (), generator=generator))] if kind == "clustered" else x.mean(0)
    order: Tensor = (x - centre).norm(dim=1).argsort(descending=kind == "farthest")
    return order[:size]


def _fit_posterior(likelihood: Likelihood, rows: Tensor) -> KnownPosterior:
    potential = Potential(likelihood, rows)
    return KnownPosterior(potential, fit_laplace(potential, rows.new_zeros(likelihood.parameter_count)))


def _sample_chains(posterior: KnownPosterior, stay: float, generator: torch.Generator) -> tuple[SampleSet, Diagnostics]:
    """Run Metropolis chains, whose stationary law is the posterior itself, without discretisation error.

    Proposals are draws of the Laplace fit, independent of the state, so all weights e^(-U) / density are computed at
    once. Staying makes neighbouring draws equal, which adds autocorrelation.
    """
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


def sample_posterior(likelihood: Likelihood, rows: Tensor, generator: torch.Generator) -> SampleSet:
    """Return independent draws, in chains, of a posterior that the Laplace fit approximates."""
    return _sample_chains(_fit_posterior(likelihood, rows), 0.0, generator)[0]


def _identity(samples: SampleSet) -> Affine:
    return Affine(torch.eye(samples.samples.shape[1], dtype=torch.float64), samples.mean, samples.mean)


def _move_samples(
    move: Map, likelihood: Likelihood, samples: SampleSet, data: Tensor, forgotten: Tensor
) -> tuple[MovedSamples, Affine]:
    """Return the moved samples and the affine map, which 2d moved points around the mean determine."""
    centre, width = samples.mean, samples.samples.std(0)
    reach = torch.diag(width)
    ends = move(likelihood, torch.cat([centre + reach, centre - reach]), data, forgotten, centre)
    above, below = ends.samples.chunk(2)
    slope = ((above - below) / 2 / width.unsqueeze(1)).T
    moved_by = Affine(slope, centre, ends.samples.mean(0))
    return replace(ends, samples=moved_by.forwards(samples.samples)), moved_by


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)
