"""Results and progress of offline methods."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dualstream.solvers.jit import Floats
from dualstream.solvers.protocols.certificate import relative_gap


@dataclass(frozen=True, slots=True)
class Progress:
    """State of a run after some epochs. The bounds are those last computed."""

    epochs: float
    seconds: float
    """Time of the method itself, without evaluations of the gap."""
    primal: float
    dual: float
    gap: float

    @property
    def relative_gap(self) -> float:
        return relative_gap(self.gap, self.primal, self.dual)


Trace = Sequence[Progress]
"""One entry per evaluation of the bounds, in order."""


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """A solution and bounds of its objective."""

    weights: Floats
    """(dim,)"""
    intercept: float
    primal: float
    """The objective at the weights."""
    dual: float
    """A lower bound of the objective over all weights."""
    gap: float
    epochs: float
    status: str
    """`converged` (relative gap <= tol), `max_epochs`, `cancelled` or `stalled` (the gap is at
    rounding level)."""
    method: str
    duals: Floats | None = None
    """(n,) the dual variables lambda of the rows, 0 for rows of weight 0; None if the method has
    none."""
    trace: Trace = field(default=(), repr=False)

    @property
    def converged(self) -> bool:
        return self.status == "converged"

    @property
    def relative_gap(self) -> float:
        """gap / max(|primal|, |dual|)."""
        return relative_gap(self.gap, self.primal, self.dual)
