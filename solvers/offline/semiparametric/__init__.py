"""Semiparametric support vector regression: a kernel beside an unpenalised basis."""

from solvers.offline.semiparametric.answer import Semiparametric
from solvers.offline.semiparametric.basis import (
    Function,
    Term,
    constant,
    cosine,
    linear,
    quadratic,
    sine,
)
from solvers.offline.semiparametric.solve import solve_semiparametric

__all__ = [
    "Function",
    "Semiparametric",
    "Term",
    "constant",
    "cosine",
    "linear",
    "quadratic",
    "sine",
    "solve_semiparametric",
]
