"""How wide rows are as they come in, and the constant that may stand behind them.

The intercept is a last coordinate, of index `dim`, that holds 1 in every row. Kernels add it
themselves (`bias`), so that no row is copied for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dualstream.solvers.core.batch import Batch
from dualstream.solvers.core.errors import ShapeMismatch
from dualstream.solvers.core.spec_cache import WorkedOut


@dataclass(frozen=True, slots=True)
class Features(WorkedOut):
    """Rows of width `dim`, and whether a constant 1 stands behind them."""

    dim: int
    intercept: bool

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> "Features":
        return cls(width_of(spec["features"]), spec["intercept"])

    @property
    def width(self) -> int:
        """Coordinates of a learner: one per index and one for the intercept, used or not."""
        return self.dim + 1

    @property
    def bias(self) -> float:
        """What the last coordinate of every row holds."""
        return 1.0 if self.intercept else 0.0

    def check(self, batch: Batch) -> None:
        """Raise ShapeMismatch unless the rows have this width."""
        if batch.dim != self.dim:
            raise ShapeMismatch(f"rows of width {batch.dim} for a model of width {self.dim}")


def width_of(features: Mapping[str, Any]) -> int:
    """The width of rows as they come in, from the `features` of a resolved specification."""
    if features["kind"] == "hashed":
        return 1 << int(features["bits"])
    return int(features["dim"])
