"""Evidence in function space: how far the predictions of a classifier moved when it forgot.

The prediction for a row x is p(y | x) = Σ_t w_t p(y | x, θ_t), averaged over draws of the posterior. Weights of a
network have no meaning by themselves, and countless of them give the same function; predictions are what a user sees.
For a group of rows

    kl             mean of KL(p_after(· | x) ‖ p_before(· | x)) over its rows; `kl_max` is the largest
    kl_error       standard error of `kl` from the choice of draws: a jackknife over groups of them
    kl_reverse     the same as `kl`, of KL(p_before ‖ p_after)
    noise          mean KL between the predictions of two halves of the draws after: what draws that were made
                   independently could show of one and the same posterior
    label          mean probability of the row's own label, before and after
    error          share of rows for which another label is the most probable one, before and after

Before and after share their random numbers, or their chain positions: for the same posterior `kl` is 0, unless the
chains were run anew. Then it is biased upwards, by less than `noise`. Both are NaN for a single draw. This is evidence
beside the bound. What contradicts a bound is in `ml.certify.refutation`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from ml.certify.predictive import ClassifierFamily, WeightedDraws, class_log_probabilities, log_predictives
from ml.errors import InvalidInput, NumericalFailure

_MAX_FORGOTTEN = 1000
_MAX_PANEL = 128  # retained and never-seen rows each
_MIN_SHOWN = 21  # rows: the probability of the label of fewer would reveal single scores
_DIGITS = 2
_GROUPS = 8  # of draws


@dataclass(frozen=True)
class PredictionShift:
    """Predictions of a group of rows, before against after."""

    rows: int
    kl: float
    kl_error: float
    kl_max: float
    kl_reverse: float
    noise: float
    label_before: float
    label_after: float
    error_before: float
    error_after: float

    def to_dict(self) -> dict[str, object]:
        """Return JSON values, rounded: the draws give no more digits. Small groups show no scores of labels."""
        numbers: dict[str, object] = {name: _round(value) for name, value in asdict(self).items()}
        hidden = [name for name in numbers if name.startswith(("label", "error"))] if self.rows < _MIN_SHOWN else []
        return {**numbers, "rows": self.rows, **dict.fromkeys(hidden)}


@dataclass(frozen=True)
class FunctionSpace:
    """Shifts of the forgotten rows, of a panel of retained ones and, if there are any, of never-seen rows."""

    forgotten: PredictionShift
    retained: PredictionShift
    never_seen: PredictionShift | None
    draws_before: int
    draws_after: int

    def to_dict(self) -> dict[str, object]:
        return {
            "forgotten": self.forgotten.to_dict(),
            "retained": self.retained.to_dict(),
            "never_seen": self.never_seen and self.never_seen.to_dict(),
            "draws_before": self.draws_before,
            "draws_after": self.draws_after,
        }


def measure_function_space(
    family: ClassifierFamily,
    before: WeightedDraws,
    after: WeightedDraws,
    forgotten: Tensor,
    retained: Tensor,
    never_seen: Tensor | None = None,
    seed: int = 0,
) -> FunctionSpace:
    """Compare the predictions of two posteriors for groups of rows. Of large groups a random selection is read.

    To compare with a model that never saw the forgotten rows, pass its draws as `before`.
    """
    if len(forgotten) == 0 or len(retained) == 0:
        raise InvalidInput("there is nothing to compare: pass at least one forgotten and one retained row")
    generator = torch.Generator().manual_seed(seed)
    unseen = retained[:0] if never_seen is None else never_seen
    limits = ((forgotten, _MAX_FORGOTTEN), (retained, _MAX_PANEL), (unseen, _MAX_PANEL))
    groups = [_subsample(rows, limit, generator) for rows, limit in limits]
    sizes = [len(rows) for rows in groups]
    predictions = _Predictions.of_draws(family, before, after, torch.cat(groups))
    of_forgotten, of_retained, of_unseen = predictions.split(sizes)
    return FunctionSpace(
        of_forgotten.shift(),
        of_retained.shift(),
        of_unseen.shift() if len(unseen) > 0 else None,
        len(before.thetas),
        len(after.thetas),
    )


def categorical_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return KL(p ‖ q) of each row of log-probabilities (n, classes).

    The terms p log(p/q) - p + q are at least 0, and rounding that leaves p and q unnormalised enters them squared.
    """
    p, q = log_p.exp(), log_q.exp()
    return (torch.where(p > 0, p * (log_p - log_q), 0.0) - p + q).clamp(min=0).sum(1)


@dataclass(frozen=True, eq=False)
class _Predictions:
    """Labels (n,) of some rows, and what each group of draws adds to their probabilities before and after.

    `before` and `after` are logarithms, (groups, n, classes). Over all groups the probabilities sum to 1.
    """

    labels: Tensor
    before: Tensor
    after: Tensor

    @classmethod
    def of_draws(
        cls, family: ClassifierFamily, before: WeightedDraws, after: WeightedDraws, rows: Tensor
    ) -> _Predictions:
        groups = min(_GROUPS, len(before.thetas), len(after.thetas))
        thetas, weights = _join(before, after, groups)
        log_density = functools.partial(class_log_probabilities, family)
        return cls(rows[:, -1].long(), *log_predictives(log_density, thetas, weights, rows).chunk(2))

    def split(self, sizes: list[int]) -> list[_Predictions]:
        sides = (torch.split(side, sizes, 1) for side in (self.before, self.after))
        return [_Predictions(*part) for part in zip(torch.split(self.labels, sizes), *sides, strict=True)]

    def shift(self) -> PredictionShift:
        before, after = self.before.logsumexp(0), self.after.logsumexp(0)
        kl = categorical_kl(after, before)
        shift = PredictionShift(
            rows=len(self.labels),
            kl=float(kl.mean()),
            kl_error=self._kl_error(),
            kl_max=float(kl.max()),
            kl_reverse=float(categorical_kl(before, after).mean()),
            noise=self._noise(),
            label_before=_label_probability(before, self.labels),
            label_after=_label_probability(after, self.labels),
            error_before=_error_rate(before, self.labels),
            error_after=_error_rate(after, self.labels),
        )
        if not all(math.isfinite(value) for value in asdict(replace(shift, kl_error=0.0, noise=0.0)).values()):
            raise NumericalFailure("a divergence between predictions is not finite: the draws leave a label no weight")
        return shift

    def _kl_error(self) -> float:
        groups = len(self.after)
        if groups < 2:
            return math.nan
        others = [[other for other in range(groups) if other != group] for group in range(groups)]
        left_out = [categorical_kl(_normalise(self.after[rest]), _normalise(self.before[rest])) for rest in others]
        return float(torch.stack(left_out).mean(1).std(correction=0)) * math.sqrt(groups - 1)

    def _noise(self) -> float:
        middle = len(self.after) // 2
        if middle == 0:
            return math.nan
        return float(categorical_kl(_normalise(self.after[:middle]), _normalise(self.after[middle:])).mean())


def _join(before: WeightedDraws, after: WeightedDraws, groups: int) -> tuple[Tensor, Tensor]:
    """Return all draws (M, p), and the weights of each group of neighbours before and after: (2·groups, M).

    Draws that a deletion only reweighted are evaluated once.
    """
    shared = torch.equal(before.thetas, after.thetas)
    thetas = after.thetas if shared else torch.cat([before.thetas, after.thetas])
    weights = after.weights.new_zeros(2, groups, len(thetas))
    for side, draws, offset in ((0, before, 0), (1, after, len(thetas) - len(after.thetas))):
        positions = torch.arange(len(draws.weights), device=weights.device)
        weights[side, positions * groups // len(positions), offset + positions] = draws.weights
    return thetas, weights.flatten(0, 1)


def _normalise(groups: Tensor) -> Tensor:
    """Return the log-probabilities (n, classes) of some groups of draws by themselves."""
    return groups.logsumexp(0).log_softmax(1)


def _label_probability(log_probabilities: Tensor, labels: Tensor) -> float:
    return float(log_probabilities.gather(1, labels.unsqueeze(1)).exp().mean())


def _error_rate(log_probabilities: Tensor, labels: Tensor) -> float:
    return float((log_probabilities.argmax(1) != labels).double().mean())


def _subsample(rows: Tensor, limit: int, generator: torch.Generator) -> Tensor:
    if len(rows) <= limit:
        return rows
    return rows[torch.randperm(len(rows), generator=generator)[:limit].to(rows.device)]


def _round(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
