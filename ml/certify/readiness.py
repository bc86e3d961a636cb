"""Readiness of a posterior: which certificate levels it can reach as registered, and how to improve it.

Certificates refer to an optimum, and training may have stopped before reaching it. The checks are in
`ml.ladder.variational_readiness`, `ml.certify.sample_readiness` and `ml.ladder.network_readiness`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ml.certify.certificate import plain
from vocabulary.levels import Level

POLISH = "run `lethe model polish` and register the result"


@dataclass(frozen=True)
class Readiness:
    """Levels that certificates can reach without retraining, with findings and advice in words.

    Retraining always reaches "retrained". `distance` bounds the KL divergence in nats to the converged posterior; it is
    NaN if there is no such bound.
    """

    levels: tuple[Level, ...]
    distance: float
    numbers: dict[str, float]
    findings: tuple[str, ...]
    advice: tuple[str, ...]

    @property
    def ready(self) -> bool:
        return not self.advice

    def to_dict(self) -> dict[str, object]:
        """Return the readiness as JSON values."""
        fields = {**asdict(self), "ready": self.ready}
        return {name: plain(value) for name, value in fields.items()}
