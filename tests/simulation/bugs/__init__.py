"""Planted faults: each replaces a method of the service's own classes.

A simulation that finds none of them proves nothing. Every function here gets the true method as its
first argument; its docstring says what it does differently.
"""

from tests.simulation.bugs import appends, controls, following, memory, states
from tests.simulation.bugs.planting import Bug

__all__ = ["BUGS", "Bug"]

BUGS = appends.BUGS | following.BUGS | memory.BUGS | states.BUGS | controls.BUGS
