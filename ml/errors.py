"""Errors that `ml` raises.

ForgettingError
├── InvalidInput        the caller must change an argument
├── NumericalFailure    the input is well formed, but the computation failed
└── MemoryExhausted     it may succeed on a larger machine, or when fewer processes share this one
"""


class ForgettingError(Exception):
    """Base class of the errors that `ml` raises."""


class InvalidInput(ForgettingError):
    """An argument is malformed; nothing was computed."""


class NumericalFailure(ForgettingError):
    """A Hessian is not positive definite, an iteration diverged, or a value is not finite."""


class MemoryExhausted(ForgettingError):
    """Memory ran out, even one row at a time."""
