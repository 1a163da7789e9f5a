"""Wild labels: numbers far outside all earlier ones, which are broken or begin a new scale.

A label is wild if it is further outside the range of all labels so far than REACH times the length
of that range, from row FIRST on. No member learns it. The weighting rule follows it at once, mostly
by the members that predict the last label, so a new scale is predicted from the second row on. With
the next label that is not wild, the rule returns to its state from before: broken labels in
sequence then leave no trace. But after BUDGET wild labels, less those that were forgotten (one in
MEMORY with each row), the next one is accepted: it extends the range and is learned.
"""

import numpy as np

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.jit import F8, I8, RO_F8, Ints, kernel
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.state_numbers import check_arrays

REACH, FIRST, BUDGET, MEMORY = 10.0, 50.0, 20.0, 2000.0

LOW, HIGH, ROWS, ASIDE = range(4)
"""The range, rows of positive weight, and wild labels that are not forgotten."""

ORDINARY, UNWEIGHTED, WILD, ACCEPTED = range(4)
"""Marks of rows: UNWEIGHTED has weight 0, ACCEPTED is a wild label that is learned."""


class WildLabels:
    """Marks the labels of a regression, in their order."""

    def __init__(self) -> None:
        self._f = np.zeros(4)

    def mark(self, labels: RO_F8, weights: RO_F8) -> Ints | None:
        """(n,): the mark of each row, after the rows before it; None if none is wild."""
        marks = np.empty(len(labels), np.int64)
        return marks if mark_rows(labels, weights, self._f, marks) else None

    def state(self) -> State:
        """See Learner."""
        return {"range": self._f.copy()}

    def restore(self, state: State) -> None:
        """See Learner: raises CorruptState, and then nothing has changed."""
        check_arrays(state, {"range": (4,)})
        low, high, rows, aside = state["range"].tolist()
        if not (low <= high and rows >= 0.0 and 0.0 <= aside <= BUDGET):
            raise CorruptState("the range of the labels is damaged")
        self._f[:] = state["range"]


@kernel
def mark_rows(labels: RO_F8, weights: RO_F8, f: F8, marks: I8) -> int:
    """Set marks (n,); returns how many labels are wild, accepted ones included."""
    wild = 0
    for i in range(labels.shape[0]):
        marks[i] = ORDINARY if weights[i] > 0.0 else UNWEIGHTED
        if marks[i] == UNWEIGHTED:
            continue
        y = labels[i]
        if f[ROWS] == 0.0:
            f[LOW] = f[HIGH] = y
        outside = max(y - f[HIGH], f[LOW] - y)
        reach = REACH * (f[HIGH] - f[LOW])
        f[ASIDE] *= 1.0 - 1.0 / MEMORY
        if f[ROWS] >= FIRST and reach > 0.0 and outside > reach:
            wild += 1
            marks[i] = WILD if f[ASIDE] <= BUDGET - 1.0 else ACCEPTED
        f[ROWS] += 1.0
        if marks[i] == WILD:
            f[ASIDE] += 1.0
        else:
            f[LOW], f[HIGH] = min(f[LOW], y), max(f[HIGH], y)
    return wild
