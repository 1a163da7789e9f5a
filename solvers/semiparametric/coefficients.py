"""The coefficients of named functions, as they are read out."""

from dataclasses import dataclass
from typing import Protocol, cast

from dualstream.solvers.core.learner import Learner


@dataclass(frozen=True, slots=True)
class Coefficient:
    """That of one function."""

    name: str
    value: float
    """0 where the function was dropped."""
    dropped: bool
    """Whether at the rows of the window it was zero, or depended on functions before it."""


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Those of a solution, in the order of the specification."""

    terms: tuple[Coefficient, ...]
    are_unique: bool
    """Whether the window pins them down; else others are as good."""
    support: int
    """Rows of the kernel expansion beside them."""


class CoefficientLearner(Learner, Protocol):
    """A learner with named functions."""

    def coefficients(self) -> Coefficients | None:
        """None before the first refit."""


def coefficients_of(learner: Learner) -> Coefficients | None:
    """None where the learner has no named functions, or no solution yet."""
    if learner.spec["algorithm"] != "semiparametric":
        return None
    return cast(CoefficientLearner, learner).coefficients()
