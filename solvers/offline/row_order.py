"""Orders in which rows are visited, epoch by epoch."""

import numpy as np

from dualstream.solvers.jit import Ints
from dualstream.solvers.offline.options import CYCLIC, RANDOM
from dualstream.solvers.offline.shuffle import shuffle


class Visits:
    """The rows that count, in one of these orders."""

    def __init__(self, rows: Ints, kind: str, rng: np.random.Generator) -> None:
        self._rows, self._kind, self._rng = rows.copy(), kind, rng

    def epoch(self) -> Ints:
        """(k,) the rows of the next epoch; valid until the next call."""
        count = len(self._rows)
        if self._kind == CYCLIC:
            return self._rows
        if self._kind == RANDOM:
            return self._rows[self._rng.integers(0, count, count)]
        shuffle(self._rows, count, self._rng.random(count))
        return self._rows
