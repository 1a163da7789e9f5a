"""The metrics of a model's segments, as a part of its state."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from dualstream.service.replica.feature_names import FeatureNames
from dualstream.service.replica.parts import ArraysByPrefix, StatePart
from dualstream.solvers import Batch, Outcome
from dualstream.solvers.spec_fields import SEGMENTS
from dualstream.wire.responses import Segment

if TYPE_CHECKING:
    from dualstream.solvers.evaluation.segments.sums import SegmentMeans, SegmentSums


class Segmented(StatePart):
    """The segments of one model."""

    __slots__ = ("sums",)
    prefixes = ("segments",)

    def __init__(self, sums: "SegmentSums") -> None:
        self.sums = sums

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> "Segmented | None":
        """The segments of a resolved specification; None if it has none."""
        if SEGMENTS not in spec:
            return None
        # Imported on demand, because importing compiles its kernels.
        from dualstream.solvers.evaluation.segments.sums import SegmentSums

        return cls(SegmentSums(spec))

    def arrays(self) -> dict[str, np.ndarray]:
        return {f"segments.{name}": array for name, array in self.sums.state().items()}

    def restore(self, arrays: ArraysByPrefix, names: FeatureNames) -> None:
        self.sums.restore(arrays["segments"], names.pairs())

    def roots(self) -> Sequence[object]:
        return (self.sums,)

    def on_names(self, names: Sequence[tuple[int, str]], since: int, seq: int) -> None:
        self.sums.add_names(names, since, seq)

    def on_learned(self, batch: Batch, outcome: Outcome, first_seq: int) -> None:
        self.sums.count(batch, outcome, first_seq)

    def on_reached(self, seq: int) -> None:
        self.sums.reach(seq)

    def metrics_by(self, column: str) -> Mapping[str, Any] | None:
        if column not in self.sums.columns:
            return None
        return {
            "measure": self.sums.measure,
            "since_start": list(map(_view_of, self.sums.since_start(column))),
            "fading": list(map(_view_of, self.sums.fading(column))),
        }


def _view_of(means: "SegmentMeans") -> Segment:
    return Segment(**asdict(means))
