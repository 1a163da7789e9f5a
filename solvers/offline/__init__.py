"""Offline: the reference optimum of rows that are all at hand, by the methods of the papers."""

from dualstream.solvers.offline.solution import Progress, Solution, Trace
from dualstream.solvers.offline.solve import solve

__all__ = ["Progress", "Solution", "Trace", "solve"]
