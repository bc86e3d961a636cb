"""Data structures of a certificate, and their conversion to JSON values."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from vocabulary.levels import Level
from vocabulary.references import Reference


@dataclass(frozen=True)
class Assumption:
    """Condition of the bound: the computed value, its limit, whether it holds, and what it means in words."""

    name: str
    holds: bool
    value: float
    limit: float
    meaning: str


@dataclass(frozen=True)
class FreshStarts:
    """Fresh starts of training beside the processed posterior.

    `lower` of `tried` ended at a lower energy, on `rows` of the retained rows. The lowest is `lowest` nats below, on
    all of them; 0 if none is.
    """

    tried: int
    lower: int
    lowest: float
    rows: int


@dataclass(frozen=True)
class Certificate:
    """Bound in nats on the KL divergence between the processed posterior and the reference, or why there is none.

    Policies are compared with `epsilon`: a proved bound, or the upper end of the 95 % confidence `interval` of an
    estimate. For a network it is an excess divergence; `direction` says over what. `epsilon_reverse` is the other
    direction, NaN where it is not computed. `constants` holds the numbers behind the bound: a frozen dataclass of its
    own for each method.

    `elbo_distance` is the estimated KL divergence in nats between the reference and the optimum of the exact evidence
    lower bound (ELBO): 0 where the energy is the ELBO itself, None where there is no such optimum or it was not
    computed. `fresh_starts` is None where the energy has one minimum. `reference_kind` is None but for sample sets.
    """

    epsilon: float
    epsilon_reverse: float
    level: Level
    reference: str
    direction: str
    n_retained: int
    assumptions: tuple[Assumption, ...]
    constants: Any
    not_proved: tuple[str, ...]
    interval: tuple[float, float] | None = None
    elbo_distance: float | None = None
    fresh_starts: FreshStarts | None = None
    reference_kind: Reference | None = None

    @property
    def reasons(self) -> tuple[str, ...]:
        """The meanings of the failed assumptions: why the level is "none"."""
        return tuple(f"not shown: {a.meaning}" for a in self.assumptions if not a.holds)

    def to_dict(self) -> dict[str, object]:
        """Return the fields and reasons as JSON values."""
        fields = {**asdict(self), "reasons": self.reasons}
        return {name: plain(value) for name, value in fields.items()}


def plain(value: object) -> object:
    """Convert a value to JSON types. Infinity and NaN, which JSON lacks, become None."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
