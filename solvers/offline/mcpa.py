"""MCPA: one cut per part of the rows; long idle cuts are left out (Algorithm 8).

`lazy=True` is the printed safeguard, which cuts at the best weights unless the last search failed.
It needs more iterations than the safeguard of OCAS, which is the default; docs/internals/papers.md
has both.
"""

from dualstream.solvers.offline.cutting_plane import method

METHOD = method(parts=4, rest=5)
