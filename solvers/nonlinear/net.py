"""Net: a neural network of two hidden layers, learned row by row.

    z = max(0, b + W h),  q = max(0, e + U z),  m = v q + c

h is the row with every column standardised by its running moments (`scaling: balanced` with power
0, see features/scaling.py) and clipped at 8; broken readings do not reach the moments. Every weight
takes AdaGrad steps of its own (Duchi, Hazan, Singer, 2011) along the gradient of the logistic loss;
for numbers, of the Huber loss in units of the targets' running standard deviation. Weights start at
numbers drawn by a hash of the seed, those of a feature when it is first learned. The net reads the
first MAX_FEATURES features of the stream and ignores others. O(units x entries) per row; no row is
rejected.

Memory: 16 units + 96 bytes per feature.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.features.column_form import balanced_form
from dualstream.solvers.features.column_table import (
    BALANCED,
    COUNT,
    HELD,
    N_ENTRY,
    N_INTS,
    N_STATISTICS,
    PLACE,
    ROWS,
    SAMPLES,
    USED,
    enter_buckets,
)
from dualstream.solvers.features.stage import grown
from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.nonlinear import net_kernels as _kernels
from dualstream.solvers.nonlinear.hashed_numbers import drawn_number
from dualstream.solvers.nonlinear.learner import NonlinearLearner
from dualstream.solvers.nonlinear.net_kernels import (
    BIAS,
    FAR,
    LARGEST_INPUT,
    MAX_FEATURES,
    MEAN,
    N_FLOATS,
    SPREAD,
    SQUARES,
    START,
    SUM_OF_BIAS,
    TARGETS,
)
from dualstream.solvers.protocols.explanation import Explanation, entries_of_last_row
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.served_form import Net as NetForm
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.intercept import width_of

BASES = np.array([[BALANCED, 0.0]])
"""The scaling of the columns, as kernels take it."""
_SEED_OF_LAYERS = 0x5851F42D4C957F2D
"""Added to the seed for the inner layers, whose numbers are then others than a feature's."""


class NetLayers:
    """The layers and columns of a net; subclasses learn."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.spec = spec
        self._dim = width_of(spec["features"])
        units, last = self._sizes()
        self._units = units
        self._f = np.zeros(N_FLOATS)
        self._f[SUM_OF_BIAS] = START
        self._k = np.zeros(N_INTS, np.int64)
        self._starts = np.full(units, START)
        self._first = np.full((2, units), START)
        self._second = np.full((units, 2 * last), START)
        self._third = np.full((4, last), START)
        self._draw_layers()
        self._z, self._dz = np.empty(units), np.empty(units)
        self._q, self._dq = np.empty(last), np.empty(last)
        self._dense, self._is_here = np.zeros(16, np.int32), np.zeros(17)
        self._slots = np.empty(0, np.int64)
        self._fit_row(64)
        self._store(np.array([self._dim], np.int64), self._new_blocks(1), 64)

    def _sizes(self) -> tuple[int, int]:
        """Units of the hidden layers."""
        units, last = self.spec["units"]
        return units, last

    def _draw_layers(self) -> None:
        units, last = self._sizes()
        seed = (self.spec["seed"] + _SEED_OF_LAYERS) & (2**63 - 1)
        numbers = iter([drawn_number(seed, at) for at in range(units + units * last + last)])
        for j in range(units):
            self._first[0, j] = 0.5 * next(numbers)
        for j in range(units):
            for i in range(last):
                self._second[j, i] = math.sqrt(2.0 / units) * next(numbers)
        self._third[0] = 0.0
        for i in range(last):
            self._third[2, i] = 0.1 / math.sqrt(last) * next(numbers)

    # -- room ------------------------------------------------------------------------------------

    def _new_blocks(self, slots: int) -> Floats:
        blocks = np.zeros((slots, 2 * self._units + N_STATISTICS))
        blocks[:, self._units : 2 * self._units] = START
        return blocks

    def _store(self, touched: Ints, blocks: Floats, least: int) -> None:
        """Store these slots with room for at least `least`, at most all that there can be."""
        used, room = len(touched), 64
        while room < least:
            room *= 2
        room = min(room, MAX_FEATURES + 1)
        self._touched = np.zeros(room, np.int32)
        self._touched[:used] = touched
        self._table = np.zeros((room, blocks.shape[1]))
        self._table[:used] = blocks
        cells = 128
        while cells < 2 * room:
            cells *= 2
        self._buckets = np.zeros((cells, 2), np.int32)
        enter_buckets(self._buckets, self._touched, 1, used)
        self._k[USED] = used

    def _fit_row(self, entries: int) -> None:
        """Scratch arrays for a row of this many entries, dense columns included."""
        if entries + 1 > len(self._slots):
            room = 2 * (entries + 1)
            self._slots = np.empty(room, np.int64)
            self._e, self._h = np.empty((N_ENTRY, room)), np.empty((1, room))
            self._idx, self._val = np.empty(room, np.int32), np.empty(room)

    def _arrays_for(self, batch: Batch) -> tuple[Ints, Floats, Floats]:
        """Slots, entries and values for a read, which leaves the learner's own as they are."""
        room = batch.longest + int(self._k[HELD]) + 1
        if room <= len(self._slots):
            return self._slots, self._e, self._h
        return np.empty(room, np.int64), np.empty((N_ENTRY, room)), np.empty((1, room))

    def _make_room(self, entries: int) -> None:
        used, capacity = int(self._k[USED]), int(self._k[HELD])
        if used + entries > len(self._touched) <= MAX_FEATURES:
            self._store(self._touched[:used].astype(np.int64), self._table[:used], used + entries)
        if capacity + entries > len(self._dense):
            self._dense = grown(self._dense, capacity, capacity + entries)
            self._is_here = np.zeros(len(self._dense) + 1)
        self._fit_row(capacity + entries)

    @property
    def samples(self) -> int:
        """See Learner."""
        return int(self._k[SAMPLES])

    # -- state -----------------------------------------------------------------------------------

    def state(self) -> State:
        """See Learner; blocks by slot, in the order in which features were first learned."""
        used = int(self._k[USED])
        return {
            "samples": np.array(self._k[SAMPLES]),
            "numbers": self._f.copy(),
            "touched": self._touched[:used].astype(np.int64),
            "blocks": self._table[:used].copy(),
            "first": self._first.copy(),
            "second": self._second.copy(),
            "third": self._third.copy(),
        }

    def _restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        used = np.asarray(state.get("touched", [])).size
        shapes: dict[str, tuple[int, ...]] = {
            "samples": (),
            "numbers": self._f.shape,
            "touched": (used,),
            "blocks": (used, self._table.shape[1]),
            "first": self._first.shape,
            "second": self._second.shape,
            "third": self._third.shape,
        }
        check_arrays(state, shapes)
        touched, blocks = state["touched"].astype(np.int64), np.array(state["blocks"], np.float64)
        self._f[:] = state["numbers"]
        self._first[:], self._second[:] = state["first"], state["second"]
        self._third[:] = state["third"]
        slots = self._dense_slots(touched, blocks)
        self._store(touched, blocks, used)
        self._dense = np.zeros(max(16, len(slots)), np.int32)
        self._dense[: len(slots)] = slots
        self._is_here = np.zeros(len(self._dense) + 1)
        self._k[HELD], self._k[SAMPLES] = len(slots), state["samples"]

    def _are_sums_sound(self) -> bool:
        """Whether every sum of squares is one that its start can grow to."""
        last = len(self._q)
        sums = (self._first[1], self._second[:, last:], self._third[[1, 3]])
        return (
            all(bool((array >= START).all()) for array in sums)
            and self._f[SUM_OF_BIAS] >= START
            and bool((self._f[[SQUARES, TARGETS, SPREAD]] >= 0.0).all())
        )

    def _dense_slots(self, touched: Ints, blocks: Floats) -> Ints:
        """Slots of the dense columns in order. Raises CorruptState."""
        features, order = touched[1:], blocks[:, PLACE - N_STATISTICS]
        slots: Ints = np.argsort(order, kind="stable")[np.count_nonzero(order == 0.0) :]
        is_sound = (
            1 <= len(touched) <= MAX_FEATURES + 1
            and touched[0] == self._dim
            and len(np.unique(features)) == len(features)
            and bool(((features >= 0) & (features < self._dim)).all())
            and bool((blocks[1:, COUNT - N_STATISTICS] >= 1.0).all())
            and bool((blocks[:, self._units : 2 * self._units] >= START).all())
            and self._are_sums_sound()
            and np.array_equal(order[slots], np.arange(1.0, len(slots) + 1.0))
        )
        if not is_sound:
            raise CorruptState("the columns are damaged")
        return slots


class Net(NetLayers, NonlinearLearner):
    """The learner of `algorithm: net`; `spec` is resolved, with task binary or regression."""

    REACH = 15.0
    """Standard deviations from the mean of the targets. These follow a change of unit slowly."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        NonlinearLearner.__init__(self, spec)
        NetLayers.__init__(self, spec)

    def _learn_rows(self, batch: Batch, scores: Floats, losses: Floats) -> None:
        row, n, spec = 0, len(batch), self.spec
        while True:
            row = _kernels.learn_rows(
                batch.indptr, batch.indices, batch.values, batch.labels, batch.weights, row, scores,
                losses, self._is_binary, self.REACH, spec["step"], spec["seed"], self._buckets,
                self._touched, self._table, self._dense, self._is_here, self._f, self._k, BASES,
                self._starts, self._slots, self._e, self._h, self._idx, self._val, self._first,
                self._second, self._third, self._z, self._q, self._dz, self._dq,
            )  # fmt: skip
            if row == n:
                return
            self._make_room(int(batch.indptr[row + 1] - batch.indptr[row]))

    def predict(self, batch: Batch) -> Floats:
        """See Learner."""
        return self._scored(batch)[0]

    def _scored(self, batch: Batch) -> tuple[Floats, Ints, Floats]:
        """The scores, and of the last row the slots and values of its entries."""
        batch.check_width(self._dim)
        scores, (slots, e, h) = np.empty(len(batch)), self._arrays_for(batch)
        _kernels.score_rows(
            batch.indptr, batch.indices, batch.values, scores, self._is_binary, self._buckets,
            self._touched, self._table, self._dense, self._is_here, self._f, self._k, BASES,
            self._starts, slots, e, h, self._first, self._second, self._third, self._z, self._q,
        )  # fmt: skip
        return scores, slots, h

    def _score_form(self) -> NetForm:
        used, units, f = int(self._k[USED]), self._units, self._f
        order = np.argsort(self._touched[1:used])
        columns = self._touched[1:used][order].astype(np.int64)
        blocks = self._table[1:used][order]
        return NetForm(
            scaling=balanced_form(columns, blocks, float(f[ROWS]), 0.0, FAR, moments=True),
            reach=LARGEST_INPUT,
            first=blocks[:, :units].copy(),
            first_bias=self._first[0].copy(),
            second=self._second[:, : len(self._q)].copy(),
            second_bias=self._third[0].copy(),
            out=self._third[2].copy(),
            out_bias=float(f[BIAS]),
            shift=0.0 if self._is_binary else float(f[MEAN]),
            scale=1.0 if self._is_binary else math.sqrt(float(f[SPREAD])),
        )

    def explain(self, row: Batch) -> Explanation:
        """See protocols/explanation.py: the gradient by h times h. The base is the rest.

        The score is linear in h near the row, so the base is what this linear function is at h = 0.
        """
        (score,), row_slots, row_values = self._scored(row)
        # This leaves the outputs of the units in the scratch arrays.
        n = entries_of_last_row(len(row.indices), row_slots, self._dense[: self._k[HELD]])
        n_units, last = len(self._z), len(self._q)
        of_last = np.where(self._q > 0.0, self._third[2], 0.0)
        of_units = (self._second[:, :last] * of_last).sum(axis=1)
        of_units = np.where(self._z > 0.0, of_units, 0.0)
        entries = np.flatnonzero(row_slots[:n] >= 0)
        slots, h = row_slots[entries], row_values[0, entries]
        slopes = (self._table[slots, :n_units] * of_units).sum(axis=1)
        unit = 1.0 if self._is_binary else math.sqrt(self._f[SPREAD])
        contributions = unit * slopes * h
        base = math.fsum([score, *-contributions]) if np.isfinite(contributions).all() else math.nan
        return Explanation.of(score, base, self._touched[slots], contributions)
