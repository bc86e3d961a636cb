"""Solvers of Hx = v: one that stores H, and three that only multiply by it."""

from ml.solvers.cholesky import Solution, solve
from ml.solvers.conjugate_gradients import EnergyBound, solve_conjugate_gradients
from ml.solvers.damped import DampedSystem
from ml.solvers.neumann import solve_neumann

__all__ = ["DampedSystem", "EnergyBound", "Solution", "solve", "solve_conjugate_gradients", "solve_neumann"]
