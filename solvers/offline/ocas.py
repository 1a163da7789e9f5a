"""OCAS: one cut per iteration, between the best weights and the relaxed solution (Algorithm 7)."""

from dualstream.solvers.offline.cutting_plane import method

METHOD = method(parts=1, rest=0)
