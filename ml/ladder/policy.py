"""Policy of a model: the bound, level, rungs and time that its owner requires of forgetting."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ml.certify.certificate import Certificate
from ml.errors import InvalidInput
from vocabulary.levels import CERTIFIED_LEVELS, Level, is_at_least
from vocabulary.references import DEFAULT_REFERENCE, REFERENCES, Reference, is_as_strong
from vocabulary.rungs import DEFAULT_RUNGS, RUNGS, RungName


@dataclass(frozen=True)
class Policy:
    """Requirements of a model's owner. `seconds` is the budget: no rung and no Newton step starts after it.

    `reference` is the weakest one allowed for a sample set.
    """

    epsilon: float
    level: Level = "proved"
    rungs: tuple[RungName, ...] = DEFAULT_RUNGS
    seconds: float | None = None
    reference: Reference = DEFAULT_REFERENCE

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise InvalidInput(f"epsilon is {self.epsilon}: pass a positive finite number of nats")
        if self.level not in CERTIFIED_LEVELS:
            raise InvalidInput(f"level is {self.level!r}: require one of {', '.join(CERTIFIED_LEVELS)}")
        if not self.rungs or list(self.rungs) != [name for name in RUNGS if name in self.rungs]:
            raise InvalidInput(f"rungs are {self.rungs!r}: allow some of {', '.join(RUNGS)}, in this order")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise InvalidInput(f"seconds are {self.seconds}: pass a positive finite budget, or none")
        if self.reference not in REFERENCES:
            raise InvalidInput(f"reference is {self.reference!r}: pass one of {', '.join(REFERENCES)}")
        if self.level == "retrained" and "retrain" not in self.rungs:
            raise InvalidInput("the level 'retrained' is required but the rung 'retrain' is not allowed: allow it")

    def met_by(self, certificate: Certificate) -> bool:
        if certificate.reference_kind is not None and not is_as_strong(certificate.reference_kind, self.reference):
            return False
        return certificate.epsilon <= self.epsilon and is_at_least(certificate.level, self.level)
