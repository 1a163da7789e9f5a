"""DriftWatch: the detectors of one stream of losses, and their events."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from sys import getsizeof
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.evaluation.drift import detectors as kernels
from dualstream.solvers.jit import Flags, Floats
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.state_numbers import check_arrays

DETECTORS = ("adwin", "page_hinkley")
"""Indexed by the detector number of an event."""

EVENTS = 64
"""Number of most recent events that are kept."""


@dataclass(frozen=True, slots=True)
class DriftEvent:
    """A detected change of the losses."""

    detector: str
    """One of DETECTORS."""
    rows: int
    """Rows learned at the detection, including the row that caused it."""
    seq: int
    """Log position of that row."""
    rising: bool
    """Whether losses rose; an improving model changes its losses, too."""


class DriftWatch:
    """Runs ADWIN and Page-Hinkley, with River's parameters, on the losses.

    ADWIN: delta 0.002, checks every 32 rows. Page-Hinkley: delta 0.005, threshold 50. Part of the
    replicated state: the same losses give the same bits, independent of batch boundaries.

    scaled   the detectors that divide losses by their mean; the others take them as they are
    """

    def __init__(self, scaled: Collection[str] = ()) -> None:
        self._scales = np.zeros((len(DETECTORS), kernels.SCALE_NUMBERS))
        unscaled = [name not in scaled for name in DETECTORS]
        self._scales[unscaled, kernels.SCALE_SEEN] = kernels.UNSCALED
        self._numbers = np.zeros(kernels.NUMBERS)
        self._buckets = np.zeros((kernels.LEVELS, kernels.BUCKET_NUMBERS))
        self._counts = np.zeros(2 * len(DETECTORS), np.int64)
        self._events = np.zeros((EVENTS, kernels.EVENT_NUMBERS), np.int64)
        self._rising = np.zeros(1, np.bool_)

    def watch(self, losses: Floats, learned: Flags, first_seq: int, rows: int) -> None:
        """Process the losses (n,) of the learned rows, in order.

        `first_seq` is the log position of the first; `rows` were learned before. Losses above 1e100
        are skipped.
        """
        kernels.watch_losses(
            losses, learned, first_seq, rows, self._numbers, self._buckets,
            self._scales, self._counts, self._events, self._rising,
        )  # fmt: skip

    @property
    def bytes_held(self) -> int:
        """Memory in bytes."""
        arrays = (self._numbers, self._buckets, self._counts, self._events, self._rising)
        return sum(map(getsizeof, (*arrays, self._scales)))

    @property
    def width(self) -> int:
        """Rows in ADWIN's window: those since the last change."""
        return int(self._numbers[kernels.WIDTH])

    @property
    def mean(self) -> float | None:
        """Mean of the losses in ADWIN's window, as the detectors saw them; None if it is empty."""
        return float(self._numbers[kernels.TOTAL]) / self.width if self.width else None

    def counts(self) -> dict[str, dict[str, int]]:
        """Detections since the start: detector -> rising, falling."""
        by_detector = self._counts.reshape(-1, 2).tolist()
        return {
            name: {"rising": rising, "falling": falling}
            for name, (falling, rising) in zip(DETECTORS, by_detector, strict=True)
        }

    def events(self) -> list[DriftEvent]:
        """The last events, at most EVENTS, the oldest first."""
        total = int(self._counts.sum())
        order = [t % EVENTS for t in range(max(0, total - EVENTS), total)]
        return [
            DriftEvent(DETECTORS[detector], row, seq, bool(rising))
            for row, seq, detector, rising in self._events[order].tolist()
        ]

    def state(self) -> State:
        """The state, as copies."""
        levels = int(self._numbers[kernels.USED_LEVELS])
        return {
            "drift_scales": self._scales.copy(),
            "drift_numbers": self._numbers.copy(),
            "drift_buckets": self._buckets[:levels].copy(),
            "drift_counts": self._counts.copy(),
            "drift_events": self._events[: min(EVENTS, int(self._counts.sum()))].copy(),
        }

    @classmethod
    def of(
        cls, state: Mapping[str, npt.NDArray[Any]], scaled: Collection[str] = ()
    ) -> "DriftWatch":
        """A DriftWatch with this state, to the bit. Raises CorruptState."""
        drift = cls(scaled)
        drift._take(state)
        return drift

    def _take(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        shapes: dict[str, tuple[int, ...]] = {
            "drift_numbers": (kernels.NUMBERS,),
            "drift_counts": self._counts.shape,
            "drift_scales": self._scales.shape,
        }
        check_arrays(state, shapes)
        levels = float(state["drift_numbers"][kernels.USED_LEVELS])
        counts = state["drift_counts"]
        if not (levels == int(levels) and 0 <= levels <= kernels.LEVELS):
            raise CorruptState(f"{levels} sizes of buckets, the maximum is {kernels.LEVELS}")
        if counts.min() < 0:
            raise CorruptState("there are fewer than 0 drift events")
        n_events = min(EVENTS, int(counts.sum()))
        shapes = {
            "drift_buckets": (int(levels), kernels.BUCKET_NUMBERS),
            "drift_events": (n_events, kernels.EVENT_NUMBERS),
        }
        check_arrays(state, shapes)
        buckets, events = state["drift_buckets"], state["drift_events"]
        sizes, detectors = buckets[:, 0], events[:, kernels.EVENT_DETECTOR]
        if not np.all((sizes >= 0) & (sizes <= kernels.MAX_BUCKETS) & (sizes == np.rint(sizes))):
            raise CorruptState("a level has too many buckets")
        if levels and not sizes[-1]:
            raise CorruptState("there are no buckets of the largest size")
        if not np.all((detectors >= 0) & (detectors < len(DETECTORS))):
            raise CorruptState("a drift event has an unknown detector")
        scales = state["drift_scales"]
        if not np.all((scales >= 0.0) | (scales == np.minimum(self._scales, 0.0))):
            raise CorruptState("drift_scales has a number below 0")
        self._scales[:] = scales
        self._numbers[:] = state["drift_numbers"]
        self._buckets[: int(levels)] = buckets
        self._counts[:] = counts
        self._events[:n_events] = events
