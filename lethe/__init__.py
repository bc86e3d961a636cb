"""Lethe makes Bayesian models forget people, and proves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lethe.client import Client, LetheError

__all__ = ["Client", "LetheError"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: the service imports `lethe.verify`, and needs no HTTP client.
    if name in __all__:
        from lethe import client

        return getattr(client, name)
    raise AttributeError(f"module 'lethe' has no attribute {name!r}")
