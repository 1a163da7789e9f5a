"""Offline solvers: the reference optimum of a fixed set of rows."""

from dualstream.solvers.offline.solution import Progress, Solution, Trace
from dualstream.solvers.offline.solve import solve

__all__ = ["Progress", "Solution", "Trace", "solve"]
