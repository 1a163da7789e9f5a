"""MCPA: a cut for each part of the rows; cuts idle for long rest (Algorithm 8).

`lazy=True` is the printed safeguard, which cuts at the best weights unless the last search failed.
It takes more iterations than OCAS's, which is the default here; docs/internals/papers.md has both.
"""

from dualstream.solvers.offline.cutting_plane import method

METHOD = method(parts=4, rest=5)
