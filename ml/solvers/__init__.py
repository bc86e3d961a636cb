"""Ways to apply an inverse Hessian."""

from ml.solvers.cholesky import Solution, solve

__all__ = ["Solution", "solve"]
