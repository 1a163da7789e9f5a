"""Random visiting orders of rows, epoch by epoch."""

import numpy as np

from dualstream.solvers.jit import Ints
from dualstream.solvers.offline.method_registry import Option
from dualstream.solvers.offline.shuffle import shuffle

PERMUTED, REPLACEMENT = "permuted", "replacement"
VISITS = Option(PERMUTED, choices=(PERMUTED, REPLACEMENT))
"""`replacement`, as in papers, leaves exp(-k) of the rows unvisited after k epochs."""


class Visits:
    """The rows that count, in random order."""

    def __init__(self, rows: Ints, kind: str, rng: np.random.Generator) -> None:
        self._rows, self._kind, self._rng = rows.copy(), kind, rng

    def epoch(self) -> Ints:
        """(k,) the rows of the next epoch; valid until the next call."""
        count = len(self._rows)
        if self._kind == REPLACEMENT:
            return self._rows[self._rng.integers(0, count, count)]
        shuffle(self._rows, count, self._rng.random(count))
        return self._rows
