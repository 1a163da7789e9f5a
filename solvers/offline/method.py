"""Protocols of the offline methods: Run, and what a Method says of itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from dualstream.solvers.jit import Floats
from dualstream.solvers.losses.loss_table import LOSSES
from dualstream.solvers.offline.problem import Bounds, Problem


@dataclass(frozen=True, slots=True)
class Start:
    """Starting point of a run; at most one is given, the default is 0."""

    duals: Floats | None = None
    """(n,) dual variables of the rows; values outside the domain are moved to the nearest valid
    one."""
    weights: Floats | None = None
    """(dim + 1,) weights and intercept."""


def first_duals(problem: Problem, start: Start) -> Floats:
    """(n,) initial dual variables."""
    if start.duals is not None:
        return problem.clipped(start.duals)
    if start.weights is not None:
        return problem.duals_at(start.weights)
    return problem.clipped(np.zeros(problem.n))


class Run(Protocol):
    """One run of a method on a problem."""

    @property
    def weights(self) -> Floats:
        """(dim + 1,) current weights; the intercept is last."""
        ...

    @property
    def duals(self) -> Floats | None:
        """(n,) current dual variables, or None for a method without them."""
        ...

    def advance(self) -> float:
        """Work for at most one epoch; return the number of epochs done.

        An epoch is as much work as one step on each row. Kernels release the GIL. 0 means that the
        method cannot make progress, and ends the run.
        """
        ...

    def bounds(self) -> Bounds:
        """Primal, dual and gap of the current weights and dual variables, from all rows."""
        ...

    @property
    def promise(self) -> float:
        """A cheap estimate of the gap; NaN if unknown."""
        ...


@dataclass(frozen=True, slots=True)
class Method:
    """Properties of a method, and its constructor."""

    begin: Callable[[Problem, Start, Mapping[str, Any], np.random.Generator], Run]
    losses: tuple[str, ...] = LOSSES
    regularizers: tuple[str, ...] = ("l2",)
    intercepts: Mapping[str, str] = field(
        default_factory=lambda: {
            "free": "a free intercept ties all dual variables together "
            "(sum_i c_i lambda_i = 0), which steps on one of them cannot keep"
        }
    )
    """Unsupported intercepts (none, penalized, free), each with the reason."""
    takes_fixed: bool = False
    """Whether the problem may include a fixed part of rows that are not given."""
    least_gap: float = 0.0
    """A gap that counts as 0 whatever the objective, which may be 0."""
    is_seen_through: bool = False
    """Whether bounds() is free, and so is computed after each epoch."""
