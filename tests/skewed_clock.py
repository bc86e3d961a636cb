"""A process whose host has the wrong time."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, tzinfo
from typing import Any

import pytest


def skew_clock(monkeypatch: pytest.MonkeyPatch, offset: timedelta) -> None:
    """Shift what `datetime.now` returns in every module of the service and the worker. The database keeps its time."""

    class Meta(type(datetime)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, datetime)

    class Skewed(datetime, metaclass=Meta):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + offset

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("service", "worker") and getattr(module, "datetime", None) is datetime:
            monkeypatch.setattr(module, "datetime", Skewed)
