"""Evidence in function space: how far the predictions of a classifier moved when it forgot.

The prediction for a row x is p(y | x) = Σ_t w_t p(y | x, θ_t), averaged over draws of the posterior. Weights of a
network have no meaning by themselves, and countless of them give the same function; predictions are what a user sees.
For a group of rows

    kl             mean of KL(p_after(· | x) ‖ p_before(· | x)) over its rows; `kl_max` is the largest
    kl_reverse     the same of KL(p_before ‖ p_after)
    noise          mean KL between the predictions of two halves of the draws after: what few draws alone could show;
                   NaN for a single draw
    label          mean probability of the row's own label, before and after
    error          share of rows for which another label is the most probable one, before and after

Before and after share their random numbers, or their chain positions, so that differences below `noise` may be real;
they need not be. This is evidence beside the bound. What contradicts a bound is in `ml.certify.refutation`.
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


@dataclass(frozen=True)
class PredictionShift:
    """Predictions of a group of rows, before against after."""

    rows: int
    kl: float
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
    """Labels (n,) of some rows, their log-probabilities (n, classes) before and after, and each row's noise (n,)."""

    labels: Tensor
    before: Tensor
    after: Tensor
    noise: Tensor

    @classmethod
    def of_draws(
        cls, family: ClassifierFamily, before: WeightedDraws, after: WeightedDraws, rows: Tensor
    ) -> _Predictions:
        thetas, weights = _join(before, after)
        log_density = functools.partial(class_log_probabilities, family)
        log_before, first_half, second_half = log_predictives(log_density, thetas, weights, rows)
        return cls(
            rows[:, -1].long(),
            log_before,
            torch.logaddexp(first_half, second_half),
            categorical_kl(first_half.log_softmax(1), second_half.log_softmax(1)),
        )

    def split(self, sizes: list[int]) -> list[_Predictions]:
        parts = (torch.split(values, sizes) for values in vars(self).values())
        return [_Predictions(*part) for part in zip(*parts, strict=True)]

    def shift(self) -> PredictionShift:
        kl = categorical_kl(self.after, self.before)
        shift = PredictionShift(
            rows=len(self.labels),
            kl=float(kl.mean()),
            kl_max=float(kl.max()),
            kl_reverse=float(categorical_kl(self.before, self.after).mean()),
            noise=float(self.noise.mean()),
            label_before=_label_probability(self.before, self.labels),
            label_after=_label_probability(self.after, self.labels),
            error_before=_error_rate(self.before, self.labels),
            error_after=_error_rate(self.after, self.labels),
        )
        if not all(math.isfinite(value) for value in asdict(replace(shift, noise=0.0)).values()):
            raise NumericalFailure("a divergence between predictions is not finite: the draws leave a label no weight")
        return shift


def _join(before: WeightedDraws, after: WeightedDraws) -> tuple[Tensor, Tensor]:
    """Return all draws, and the weights of those before and of each half of those after: (M, p) and (3, M).

    Draws that a deletion only reweighted are evaluated once.
    """
    shared = torch.equal(before.thetas, after.thetas)
    thetas = after.thetas if shared else torch.cat([before.thetas, after.thetas])
    offset, count = len(thetas) - len(after.thetas), len(after.thetas)
    in_first_half = torch.arange(count, device=thetas.device) < count / 2
    weights = after.weights.new_zeros(3, len(thetas))
    weights[0, : len(before.weights)] = before.weights
    weights[1, offset:] = torch.where(in_first_half, after.weights, 0.0)
    weights[2, offset:] = torch.where(in_first_half, 0.0, after.weights)
    return thetas, weights


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
