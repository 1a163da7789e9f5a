"""Watches the progressive loss and the norm of the weights, each against its own history.

Every `every` learned rows a *look* is taken: at their mean loss, and at the norm of the weights as
they stand. A look at a value is *bad* where the value exceeds both

    times * mean    and    mean + deviations * sqrt(variance)

of the good looks before it. These fade from look to look, the k-th by k / (k + 1), so that they
weigh as their numbers do and the beginning, when losses are large, is soon forgotten; but by
1 - every / history where that is less. The first `after / every` looks are good whatever they are.
`patience` bad looks one after the other trip the breaker of that quantity. A bad look is no part of
the history.

All of it is counted in learned rows, and sums run row by row: the same rows give the same bits and
trip at the same row, however they are cut into batches.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.core.errors import CorruptState
from dualstream.solvers.core.learner import Learner, Outcome, State, check_arrays
from dualstream.solvers.core.members import member_learner
from dualstream.solvers.evaluation.guard.spec import FIELD, QUANTITIES
from dualstream.solvers.jit import RO_F8, Floats, f8, kernel

LARGEST = 1e100
"""What is larger is taken for this: its square would be infinite."""
WEIGHTS_PER_ROW = 100
"""A norm is looked at again after a hundredth as many rows as it has weights, if that is more."""


@dataclass(frozen=True, slots=True)
class Trip:
    """A breaker has tripped."""

    quantity: str
    """One of QUANTITIES."""
    rows: int
    """Rows learned when it did, the row that made it trip included."""
    seq: int
    """The place of that row in the model's journal."""
    value: float
    limit: float
    calm_seq: int
    """Up to where nothing was wrong: the last good look at this quantity was taken there."""


class Guard:
    """The breakers of the model of a resolved specification. Part of the replicated state."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        fields = spec[FIELD]
        self._every: int = fields["every"]
        self._breakers = {
            quantity: _Breaker(fields, fields[quantity])
            for quantity in QUANTITIES
            if fields[quantity] is not None
        }
        self._rows = 0
        self._rows_since = 0
        self._loss_since = 0.0
        self._norm_in = 0

    @property
    def rows_to_look(self) -> int:
        """Learned rows until the next look is due."""
        return self._every - self._rows_since

    @property
    def calm_seq(self) -> int:
        """The record before which no trip that is yet to come sees anything wrong."""
        return min(breaker.calm_seq for breaker in self._breakers.values())

    def count(self, outcome: Outcome) -> None:
        """Count the rows that were learned, in order; at most `rows_to_look` of them."""
        losses = outcome.losses
        if outcome.rejected.any():
            losses = losses[~outcome.rejected]
        total = self._loss_since
        for loss in losses.tolist():
            total += loss if loss <= LARGEST else LARGEST  # NaN is not
        self._loss_since = total
        self._rows_since += len(losses)
        self._rows += len(losses)

    def look(self, learner: Learner, seq: int) -> list[Trip]:
        """Look, if that is due; the breakers that have tripped. The last row stands at `seq`."""
        if self._rows_since < self._every:
            return []
        mean = self._loss_since / self._every
        self._rows_since, self._loss_since = 0, 0.0
        trips = self._look_at("loss", mean, seq)
        if "norm" in self._breakers:
            self._norm_in -= 1
            if self._norm_in <= 0:
                norm, size = norm_of(learner)
                self._norm_in = -(-size // (WEIGHTS_PER_ROW * self._every))
                trips += self._look_at("norm", norm, seq)
        return trips

    def _look_at(self, quantity: str, value: float, seq: int) -> list[Trip]:
        breaker = self._breakers.get(quantity)
        limit = None if breaker is None else breaker.look(value, seq)
        if breaker is None or limit is None:
            return []
        return [Trip(quantity, self._rows, seq, min(value, LARGEST), limit, breaker.calm_seq)]

    def begin_anew(self, seq: int, quantity: str | None = None) -> None:
        """Know no history of the quantity, or of any, from the record `seq` on."""
        for name, breaker in self._breakers.items():
            if quantity in (None, name):
                breaker.forget()
                breaker.calm(seq)
        if quantity is None:
            self._rows_since, self._loss_since = 0, 0.0

    def calm(self, seq: int) -> None:
        """Nothing is wrong with the state at the record `seq`, whatever was before."""
        for breaker in self._breakers.values():
            breaker.calm(seq)

    def not_before(self, seq: int) -> None:
        """The states before the record `seq` are not to be gone back to."""
        for breaker in self._breakers.values():
            breaker.calm_seq = max(breaker.calm_seq, seq)

    def state(self) -> State:
        """All of it, as copies."""
        arrays: State = {
            "rows": np.array([self._rows, self._rows_since, self._norm_in], np.int64),
            "loss_since": np.array(self._loss_since),
        }
        for quantity, breaker in self._breakers.items():
            arrays[f"{quantity}_history"] = np.array([breaker.weight, breaker.mean, breaker.spread])
            counts = [breaker.looks, breaker.bad, breaker.calm_seq]
            arrays[f"{quantity}_counts"] = np.array(counts, np.int64)
        return arrays

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Be in this state, to the bit; without arrays at the beginning. Raises CorruptState."""
        if not state:
            return
        shapes: dict[str, tuple[int, ...]] = {"rows": (3,), "loss_since": ()}
        for quantity in self._breakers:
            shapes |= {f"{quantity}_history": (3,), f"{quantity}_counts": (3,)}
        check_arrays(state, shapes)
        rows, rows_since, norm_in = state["rows"].tolist()
        if not 0 <= rows_since < self._every:
            raise CorruptState(f"the guard has {rows_since} rows of {self._every} to its next look")
        self._rows, self._rows_since, self._norm_in = rows, rows_since, norm_in
        self._loss_since = float(state["loss_since"])
        for quantity, breaker in self._breakers.items():
            breaker.weight, breaker.mean, breaker.spread = state[f"{quantity}_history"].tolist()
            breaker.looks, breaker.bad, breaker.calm_seq = state[f"{quantity}_counts"].tolist()


class _Breaker:
    """What one quantity was at good looks: mean and variance, faded; and how many were bad since.

    weight   of all good looks, each fading
    spread   the faded sum of squared deviations from the mean
    """

    def __init__(self, fields: Mapping[str, Any], times: float) -> None:
        self._times = times
        self._deviations: float = fields["deviations"]
        self._patience: int = fields["patience"]
        self._least_looks = -(-fields["after"] // fields["every"])
        self._fading = 1.0 - fields["every"] / fields["history"]
        self.calm_seq = 0
        self.forget()

    def forget(self) -> None:
        self.weight = self.mean = self.spread = 0.0
        self.looks = self.bad = 0

    def calm(self, seq: int) -> None:
        self.bad, self.calm_seq = 0, seq

    @property
    def limit(self) -> float:
        """What is larger is bad."""
        if self.looks < self._least_looks or self.mean == 0.0:
            return math.inf
        deviation = math.sqrt(self.spread / self.weight)
        return max(self._times * self.mean, self.mean + self._deviations * deviation)

    def look(self, value: float, seq: int) -> float | None:
        """Take a look at the value, at `seq`; the limit where that trips the breaker."""
        if not value <= LARGEST:
            value = LARGEST
        limit = self.limit
        if value > limit:
            self.bad += 1
            return limit if self.bad >= self._patience else None
        self.calm(seq)
        apart = value - self.mean
        fading = min(self._fading, self.looks / (self.looks + 1))
        self.weight = fading * self.weight + 1.0
        self.mean += apart / self.weight
        self.spread = fading * self.spread + apart * (value - self.mean)
        self.looks += 1
        return None


def norm_of(learner: Learner) -> tuple[float, int]:
    """The Euclidean norm of all served weights and intercepts, and how many these are.

    Those of a learner with members are the weights of every member.
    """
    members = member_learner(learner)
    if members is None:
        intercepts = getattr(learner, "intercepts", None)
        pairs = [(learner.weights, learner.intercept if intercepts is None else intercepts)]
    else:
        pairs = [members.member_weights(view.name) for view in members.members()]
    total, size = 0.0, 0
    for weights, intercept in pairs:
        for numbers in (weights, intercept):
            flat = np.ascontiguousarray(numbers, np.float64).reshape(-1)
            total += squared_norm(flat)
            size += len(flat)
    return math.sqrt(total), size


@kernel(f8(RO_F8))
def squared_norm(numbers: Floats) -> float:
    """The sum of squares, one after the other; it stays finite."""
    total = 0.0
    for i in range(numbers.shape[0]):
        size = abs(numbers[i])
        if not size <= 1e100:
            size = 1e100
        total += size * size
    return total
