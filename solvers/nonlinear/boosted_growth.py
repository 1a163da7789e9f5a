"""Growth: a tree while it grows."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dualstream.solvers.jit import Bytes, Floats, Indices, Ints
from dualstream.solvers.nonlinear.boosted_kernels import MAX_BINS, UNKNOWN
from dualstream.solvers.nonlinear.growth_kernels import LEAVES, N_GROWN, value_leaves

RIDGE = 1.0
"""Added to the sum of second derivatives of a leaf, in units of boosted_kernels.weight_unit."""
LEAST_ROWS = 10.0
"""Rows of a leaf."""
MAX_ROWS = 2**62
"""More rows than all splits of a tree have: it grows at once."""
NO_ERRORS = np.empty(0)


@dataclass(slots=True)
class Growth:
    """The gradients that a tree grows on, and its nodes so far: see growth_kernels.py."""

    curvatures: Floats
    order: Indices
    grown: Floats
    size: Ints
    feature: Indices
    threshold: Floats
    left: Indices
    ridge: float
    arguments: tuple[Any, ...]
    """Those of split_leaf."""
    base_step: float = 0.0
    """The step of the score without trees, which the gradients take for granted."""
    errors: Floats = field(default_factory=lambda: NO_ERRORS)
    """(n,) whose medians are the values of leaves; (0,) for Newton steps."""

    @classmethod
    def of(
        cls,
        codes: Bytes,
        derivatives: tuple[Floats, Floats, Ints, Floats],
        columns: Ints,
        bins: tuple[Floats, Ints],
        leaves: int,
        most_bins: int,
        least_gain: float,
        unit: float,
        order: Indices,
    ) -> "Growth":
        """A tree without nodes, of at most `leaves` leaves, on the rows in `order`.

        derivatives    gradients, second derivatives, both packed, and their units
        bins           edges and their numbers, below `most_bins`
        unit           see boosted_kernels.weight_unit
        """
        grown, size = np.zeros((leaves, N_GROWN)), np.zeros(2, np.int64)
        feature, left = np.full(2 * leaves, -1, np.int32), np.zeros(2 * leaves, np.int32)
        threshold, ridge = np.zeros(2 * leaves), RIDGE * unit
        arguments = (
            codes, *derivatives, columns, *bins, ridge, LEAST_ROWS, least_gain * unit, order,
            np.empty_like(order), np.empty((leaves, most_bins * max(1, len(columns))), np.int64),
            grown, np.empty((3, MAX_BINS)), size, feature, threshold, left,
        )  # fmt: skip
        return cls(derivatives[1], order, grown, size, feature, threshold, left, ridge, arguments)

    @property
    def most_rows(self) -> int:
        """Rows of the leaves that are split with one row."""
        return len(self.order) // 2

    def leaves(self, step: float, most_value: float) -> tuple[Floats, Bytes]:
        """The values (N,) of its nodes, and the leaf of each row, UNKNOWN if not in `order`."""
        value = np.zeros(len(self.feature))
        leaf_of = np.full(len(self.curvatures), UNKNOWN, np.uint8)
        value_leaves(
            self.errors, self.curvatures, step, self.ridge, most_value, self.order, self.grown,
            int(self.size[LEAVES]), value, leaf_of,
        )  # fmt: skip
        return value, leaf_of
