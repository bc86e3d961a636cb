"""Lethe makes Bayesian models forget people, and proves it."""

from lethe.client import Client, LetheError

__all__ = ["Client", "LetheError"]
