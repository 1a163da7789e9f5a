"""Orders in which rows are visited, epoch by epoch."""

import numpy as np

from dualstream.solvers.jit import I8, RO_F8, Ints, kernel
from dualstream.solvers.offline.options import CYCLIC, RANDOM


@kernel
def shuffle(order: I8, count: int, draws: RO_F8) -> None:
    """Shuffle the first `count` indices (Fisher, Yates); draws in [0, 1)."""
    for i in range(count - 1):
        j = i + int(draws[i] * (count - i))
        order[i], order[j] = order[j], order[i]


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
