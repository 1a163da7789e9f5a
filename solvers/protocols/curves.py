"""Curves: the functions of single features that an additive model is a sum of."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dualstream.solvers.jit import Floats
from dualstream.solvers.protocols.learner import Learner


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A function of one feature: linear between its knots, and constant beyond the outer ones."""

    feature: int
    """Index, from 0."""
    knots: Floats
    """(k,) values of the feature, increasing, k >= 1."""
    heights: Floats
    """(k,) what the feature adds to the score at each knot."""

    @property
    def reach(self) -> float:
        """The largest height minus the least: how far the feature can move the score."""
        return float(np.ptp(self.heights))


def curves_of(learner: Learner) -> list[list[Curve]] | None:
    """Copies of the curves of each score: one list, or one per class; None for other models.

    Of a portfolio these are the curves of its first member that has some.
    """
    ask: Any = getattr(learner, "curves", None)
    curves: list[list[Curve]] | None = None if ask is None else ask()
    return curves
