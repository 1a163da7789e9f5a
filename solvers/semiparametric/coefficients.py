"""Coefficients of the named functions of a semiparametric model."""

from dataclasses import dataclass
from typing import Protocol, cast

from dualstream.solvers.protocols.learner import Learner


@dataclass(frozen=True, slots=True)
class Coefficient:
    """The coefficient of one function."""

    name: str
    value: float
    """0 for a dropped function."""
    dropped: bool
    """Whether, on the rows of the window, the function is zero or depends on earlier functions."""


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Coefficients of a solution, in the order of the specification."""

    terms: tuple[Coefficient, ...]
    are_unique: bool
    """Whether the window determines them; otherwise other values are equally good."""
    support: int
    """Rows of the kernel expansion."""


class CoefficientLearner(Learner, Protocol):
    """A learner with named functions."""

    def coefficients(self) -> Coefficients | None:
        """None before the first refit."""


def coefficients_of(learner: Learner) -> Coefficients | None:
    """The coefficients; None for a learner without named functions, or before a solution."""
    if learner.spec["algorithm"] != "semiparametric":
        return None
    return cast(CoefficientLearner, learner).coefficients()
