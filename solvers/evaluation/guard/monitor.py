"""Guard: compares the progressive loss and the norm of the weights with their history.

Every `every` learned rows a *look* is taken: at the mean loss of these rows, and at the current
norm of the weights. A look at a value is *bad* if the value exceeds both

    times * mean    and    mean + deviations * sqrt(variance)

of the earlier good looks. These fade from look to look, the k-th by k / (k + 1), so all weigh the
same at first and the initial large losses are soon negligible; but by 1 - every / history if that
is smaller. The first `after / every` looks are always good. `patience` consecutive bad looks trip
the breaker of that quantity. A bad look is not added to the history.

Everything is counted in learned rows, and sums run row by row. So the same rows give the same bits
and trip at the same row, independent of batch boundaries.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.evaluation.guard.spec import FIELD, QUANTITIES
from dualstream.solvers.jit import RO_F8, kernel
from dualstream.solvers.protocols.learner import Learner, Outcome, State
from dualstream.solvers.protocols.member_learner import member_learner
from dualstream.solvers.protocols.served_weights import ServedWeights
from dualstream.solvers.protocols.state_numbers import check_arrays

LARGEST = 1e100
"""Larger values are clipped to this: their squares would be infinite."""
WEIGHTS_PER_ROW = 100
"""A look at the norm waits for at least a hundredth as many rows as there are weights."""


@dataclass(frozen=True, slots=True)
class Trip:
    """A breaker that tripped."""

    quantity: str
    """One of QUANTITIES."""
    rows: int
    """Rows learned at the trip, including the row that caused it."""
    seq: int
    """Log position of that row."""
    value: float
    limit: float
    calm_seq: int
    """Log position of the last good look at this quantity."""


class Guard:
    """The breakers of a model of a resolved specification. Part of the replicated state."""

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
        """The log position before which no future trip finds a fault."""
        return min(breaker.calm_seq for breaker in self._breakers.values())

    def count(self, outcome: Outcome) -> None:
        """Count the learned rows, in order; at most `rows_to_look` of them."""
        losses = outcome.losses
        if outcome.rejected.any():
            losses = losses[~outcome.rejected]
        total = self._loss_since
        for loss in losses.tolist():
            total += loss if loss <= LARGEST else LARGEST  # False for NaN, too
        self._loss_since = total
        self._rows_since += len(losses)
        self._rows += len(losses)

    def look(self, learner: Learner, seq: int) -> list[Trip]:
        """Take a look, if due; returns the breakers that tripped. The last row is at log position
        `seq`."""
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

    def reset(self, seq: int, quantity: str | None = None) -> None:
        """Clear the history of the quantity, or of all, from log position `seq` on."""
        for name, breaker in self._breakers.items():
            if quantity in (None, name):
                breaker.forget()
                breaker.acknowledge(seq)
        if quantity is None:
            self._rows_since, self._loss_since = 0, 0.0

    def acknowledge(self, seq: int) -> None:
        """Declare the state at log position `seq` good, whatever was before."""
        for breaker in self._breakers.values():
            breaker.acknowledge(seq)

    def not_before(self, seq: int) -> None:
        """Forbid rollbacks to states before log position `seq`."""
        for breaker in self._breakers.values():
            breaker.calm_seq = max(breaker.calm_seq, seq)

    def state(self) -> State:
        """The state, as copies."""
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
        """Restore this state, to the bit; the initial one without arrays. Raises CorruptState."""
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
    """History of one quantity: faded mean and variance of good looks, and consecutive bad looks.

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

    def acknowledge(self, seq: int) -> None:
        self.bad, self.calm_seq = 0, seq

    @property
    def limit(self) -> float:
        """Larger values are bad."""
        if self.looks < self._least_looks or self.mean == 0.0:
            return math.inf
        deviation = math.sqrt(self.spread / self.weight)
        return max(self._times * self.mean, self.mean + self._deviations * deviation)

    def look(self, value: float, seq: int) -> float | None:
        """Look at the value at log position `seq`; returns the limit if that trips the breaker."""
        if not value <= LARGEST:
            value = LARGEST
        limit = self.limit
        if value > limit:
            self.bad += 1
            return limit if self.bad >= self._patience else None
        self.acknowledge(seq)
        apart = value - self.mean
        fading = min(self._fading, self.looks / (self.looks + 1))
        self.weight = fading * self.weight + 1.0
        self.mean += apart / self.weight
        self.spread = fading * self.spread + apart * (value - self.mean)
        self.looks += 1
        return None


def norm_of(learner: Learner) -> tuple[float, int]:
    """The Euclidean norm of all served weights and intercepts, and their number.

    For a learner with members, those of every member.
    """
    members = member_learner(learner)
    owners: Iterable[Iterable[ServedWeights]] = [learner.served_weights()]
    if members is not None:
        owners = [[members.member_served_weights(view.name)] for view in members.members()]
    total, size = 0.0, 0
    for scores in owners:
        squares, intercepts = 0.0, []
        for served in scores:
            for _, weights in served.blocks():
                squares = add_squares(squares, weights)
            intercepts.append(served.intercept)
            size += served.dim + 1
        total += squares
        total += add_squares(0.0, np.array(intercepts, np.float64))
    return math.sqrt(total), size


@kernel
def add_squares(total: float, numbers: RO_F8) -> float:
    """`total` plus the squares in order; it stays finite."""
    for i in range(numbers.shape[0]):
        size = abs(numbers[i])
        if not size <= 1e100:
            size = 1e100
        total += size * size
    return total
