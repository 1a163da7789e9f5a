"""Set of indices that kernels can look up."""

from collections.abc import Collection

import numpy as np

from dualstream.solvers.jit import Indices
from dualstream.solvers.rows.text.tokens import add_indices


class IndexTable:
    """A set of indices that kernels can look up."""

    def __init__(self) -> None:
        self.slots: Indices = np.zeros(2, np.int32)
        self._count = 0

    def add(self, indices: Collection[int]) -> None:
        """Add these indices. A concurrent reader of `slots` sees some of them."""
        new = np.array(sorted(indices), np.int64)
        self._count += len(new)
        if 2 * self._count > len(self.slots):
            used = ~self.slots[self.slots != 0].astype(np.int64)
            slots = np.zeros(1 << (4 * self._count).bit_length(), np.int32)
            add_indices(slots, used)
            add_indices(slots, new)
            self.slots = slots
        else:
            add_indices(self.slots, new)
