"""What can go wrong in `ml`.

ForgettingError
├── InvalidInput        the caller must change what it passes
├── NumericalFailure    the input is well formed, but the computation did not hold
└── MemoryExhausted     it would hold on a larger machine, or at a quieter time
"""


class ForgettingError(Exception):
    """Base of every error raised on purpose by `ml`."""


class InvalidInput(ForgettingError):
    """An argument is malformed; nothing was computed."""


class NumericalFailure(ForgettingError):
    """A Hessian is not positive definite, an iteration diverged, or a value is not finite."""


class MemoryExhausted(ForgettingError):
    """Memory ran out, however little was computed at once."""
