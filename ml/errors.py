"""What can go wrong in `ml`.

ForgettingError
├── InvalidInput        the caller must change what it passes
└── NumericalFailure    the input is well formed, but the computation did not hold
"""


class ForgettingError(Exception):
    """Base of every error raised on purpose by `ml`."""


class InvalidInput(ForgettingError):
    """An argument is malformed; nothing was computed."""


class NumericalFailure(ForgettingError):
    """A Hessian is not positive definite, an iteration diverged, or a value is not finite."""
