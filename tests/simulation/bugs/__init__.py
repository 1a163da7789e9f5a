"""Planted faults: each stands in for a method of the service's own classes, as a slip would.

A simulation that finds none of them would prove nothing. Every function here is given the true
method first; what it does otherwise is what its docstring says.
"""

from tests.simulation.bugs import appends, controls, following, memory, states
from tests.simulation.bugs.planting import Bug

__all__ = ["BUGS", "Bug"]

BUGS = appends.BUGS | following.BUGS | memory.BUGS | states.BUGS | controls.BUGS
