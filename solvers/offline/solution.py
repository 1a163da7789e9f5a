"""What an offline method answers, and what it tells on the way."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dualstream.solvers.core.certificate import relative_gap
from dualstream.solvers.jit import Floats


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a method stands after some epochs. The bounds are those last computed."""

    epochs: float
    seconds: float
    """Of the method's own work; looking at the gap is not counted."""
    primal: float
    dual: float
    gap: float

    @property
    def relative_gap(self) -> float:
        return relative_gap(self.gap, self.primal, self.dual)


Trace = Sequence[Progress]
"""One for each time that the bounds were computed, in order."""


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """An answer, and how far it can be from the best one."""

    weights: Floats
    """(dim,)"""
    intercept: float
    primal: float
    """The objective at the weights."""
    dual: float
    """No weights have an objective below it."""
    gap: float
    epochs: float
    status: str
    """`converged` (relative gap <= tol), `max_epochs`, `cancelled` or `stalled`: at what rounding
    leaves of the gap."""
    method: str
    duals: Floats | None = None
    """(n,) the dual variables lambda of the rows, 0 for rows of weight 0; None without them."""
    trace: Trace = field(default=(), repr=False)

    @property
    def converged(self) -> bool:
        return self.status == "converged"

    @property
    def relative_gap(self) -> float:
        """gap / max(|primal|, |dual|)."""
        return relative_gap(self.gap, self.primal, self.dual)
