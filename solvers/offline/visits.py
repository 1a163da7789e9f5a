"""In which order rows are visited, epoch after epoch."""

import numpy as np

from solvers._jit import Ints
from solvers.offline._shuffle import shuffle
from solvers.offline.methods import Option

PERMUTED, REPLACEMENT = "permuted", "replacement"
VISITS = Option(PERMUTED, choices=(PERMUTED, REPLACEMENT))
"""`replacement`, as papers have it, leaves exp(-k) of the rows unvisited after k epochs."""


class Visits:
    """Rows that count, in random order."""

    def __init__(self, rows: Ints, kind: str, rng: np.random.Generator) -> None:
        self._rows, self._kind, self._rng = rows.copy(), kind, rng

    def epoch(self) -> Ints:
        """(k,) the rows of the next epoch; valid until the next call."""
        count = len(self._rows)
        if self._kind == REPLACEMENT:
            return self._rows[self._rng.integers(0, count, count)]
        shuffle(self._rows, count, self._rng.random(count))
        return self._rows
