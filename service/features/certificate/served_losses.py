"""Losses of a model's retained rows, as served.

The losses are those from before each row of the window was learned. They are the basis of the
stream's regret, and nothing else depends on them. They are bookkeeping next to the state, and
snapshots carry them. If the window changes in another way than by learning (rollback, unlearn), all
losses are dropped.
"""

from collections.abc import Mapping, Sequence
from sys import getsizeof
from typing import Any, Self

import numpy as np

from dualstream.service.replica.feature_names import FeatureNames
from dualstream.service.replica.parts import ArraysByPrefix, StatePart
from dualstream.solvers import Batch, CorruptState, Outcome
from dualstream.solvers.offline import refit_methods
from dualstream.solvers.spec_cache import derived_once

_MIN_LENGTH = 64
_NO_LOSSES = np.empty(0)


class ServedLosses(StatePart):
    """Losses of the last `capacity` rows."""

    __slots__ = ("_entered", "_capacity", "_ring")
    prefixes = ("served",)

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Self | None:
        """Losses for a model of this spec; None if it has no reference optimum."""
        capacity = _capacity_of(spec)
        return cls(capacity) if capacity else None

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._ring = _NO_LOSSES
        # Rows added since the ring was created; row n is at index n mod its length.
        self._entered = 0

    def __len__(self) -> int:
        return min(self._entered, self._capacity)

    @property
    def bytes_held(self) -> int:
        """Memory in bytes."""
        return getsizeof(self._ring)

    def roots(self) -> Sequence[object]:
        return (self,) if self._entered else ()

    def on_learned(self, batch: Batch, outcome: Outcome, first_seq: int) -> None:
        """Add the losses of rows that were learned and have a weight."""
        most, losses = self._capacity, outcome.losses
        if len(losses) == 1:
            if not outcome.rejected[0] and batch.weights[0] > 0.0:
                entered = self._entered
                if entered >= len(self._ring) != most:
                    self._grow(1)
                    entered = self._entered
                self._ring[entered % len(self._ring)] = losses[0]
                self._entered = entered + 1
            return
        # If all of the last rows enter, earlier rows fall out anyway.
        enters = batch.weights[-most:] > 0.0
        enters &= ~outcome.rejected[-most:]
        if np.count_nonzero(enters) < len(enters):
            losses = losses[~outcome.rejected & (batch.weights > 0.0)]
        self._put(losses)

    def _put(self, losses: np.ndarray) -> None:
        kept = losses[-self._capacity :]
        if len(kept) == self._capacity:
            self._ring, self._entered = kept.copy(), len(kept)
            return
        if not len(kept):
            return
        self._grow(len(kept))
        self._entered += len(kept)
        at = (self._entered - len(kept)) % len(self._ring)
        up_to_end = len(self._ring) - at
        self._ring[at : at + len(kept)] = kept[:up_to_end]
        self._ring[: max(0, len(kept) - up_to_end)] = kept[up_to_end:]

    def _grow(self, more: int) -> None:
        """Enlarge the ring if needed. Until it has its final length, no row is overwritten."""
        length = len(self._ring)
        if length == self._capacity or self._entered + more <= length:
            return
        length = min(self._capacity, max(_MIN_LENGTH, 2 * length, self._entered + more))
        if not self._entered:
            self._ring = np.empty(length)
            return
        kept = self.last(len(self))
        self._ring = np.empty(length)
        self._ring[: len(kept)] = kept
        self._entered = len(kept)

    def last(self, count: int) -> np.ndarray:
        """Return the last `count` losses, oldest first; `count` is at most len(self)."""
        numbers = np.arange(self._entered - count, self._entered)
        losses: np.ndarray = self._ring[numbers % max(1, len(self._ring))]
        return losses

    def on_forgotten(self, seq: int) -> None:
        self._ring, self._entered = _NO_LOSSES, 0

    def bookkeeping(self) -> dict[str, np.ndarray]:
        return {"served.losses": self.last(len(self))} if self._entered else {}

    def restore(self, arrays: ArraysByPrefix, names: FeatureNames) -> None:
        """Restore from arrays; a copy of a state has none. Raises CorruptState."""
        self._ring, self._entered = _NO_LOSSES, 0
        losses = arrays["served"].get("losses", _NO_LOSSES)
        if losses.ndim != 1 or losses.dtype != np.float64:
            raise CorruptState(f"the losses served have shape {losses.shape}, {losses.dtype}")
        self._put(losses)


@derived_once
def _capacity_of(spec: Mapping[str, Any]) -> int:
    """Number of rows whose losses are kept: the rows that a reference optimum covers."""
    if refit_methods.why_no_reference(spec) is not None:
        return 0
    window = spec["window"]
    length = 0 if isinstance(window, str) else int(window.get("length", 0))
    return length or int(spec["retain"])
