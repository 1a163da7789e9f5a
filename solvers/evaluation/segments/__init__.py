"""Progressive metrics by the values of a column: in which segment a model fails."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dualstream.solvers.spec_fields import SEGMENTS

if TYPE_CHECKING:
    from dualstream.solvers.evaluation.segments.sums import SegmentSums

__all__ = ["segments_of"]


def segments_of(spec: Mapping[str, Any]) -> "SegmentSums | None":
    """The segments of a resolved specification, before the first row; None without segments."""
    if SEGMENTS not in spec:
        return None
    # Imported on demand, because importing compiles its kernel.
    module: Any = importlib.import_module("dualstream.solvers.evaluation.segments.sums")
    sums: SegmentSums = module.SegmentSums(spec)
    return sums
