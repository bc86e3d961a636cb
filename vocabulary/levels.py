"""Levels of a certificate: how its bound was obtained."""

from __future__ import annotations

from typing import Literal, get_args

Level = Literal["none", "estimated", "proved", "retrained"]
"""`none`: no bound holds, so nothing is published.
`estimated`: epsilon is the upper end of an interval.
`proved`: epsilon is an upper bound.
`retrained`: the model never saw the records, so there is nothing to bound.
"""
LEVELS: tuple[Level, ...] = get_args(Level)
"""All levels, from the weakest to the strongest."""

CertifiedLevel = Literal["estimated", "proved", "retrained"]
"""Levels that a policy may require and a certificate may state."""
CERTIFIED_LEVELS: tuple[CertifiedLevel, ...] = get_args(CertifiedLevel)

DESTROYED: Literal["destroyed"] = "destroyed"
"""Stands in the place of a level where certificates are listed, if the model was destroyed. It is not a level: there is
no bound, and no policy can require it."""
ListedLevel = Literal["estimated", "proved", "retrained", "destroyed"]
"""Levels by which certificates are listed, and `DESTROYED`."""


def is_at_least(level: str, required: str) -> bool:
    """Return whether a level is as strong as the required one."""
    names: tuple[str, ...] = LEVELS
    return names.index(level) >= names.index(required)
