"""Semiparametric support vector regression: a kernel plus an unpenalised basis."""

from dualstream.solvers.offline.semiparametric.basis import (
    Function,
    Term,
    constant,
    cosine,
    linear,
    quadratic,
    sinc,
    sine,
)
from dualstream.solvers.offline.semiparametric.solution import Semiparametric
from dualstream.solvers.offline.semiparametric.solve import solve_semiparametric

__all__ = [
    "Function",
    "Semiparametric",
    "Term",
    "constant",
    "cosine",
    "linear",
    "quadratic",
    "sinc",
    "sine",
    "solve_semiparametric",
]
