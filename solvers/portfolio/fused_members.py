"""Fused members: members that learn in one kernel and share their feature stages.

Memory: a feature that was ever in a row of positive weight has a block of 8 (4 + members that have
a diagonal + members) bytes, rounded up to 64, and about 20 bytes of hash table: 148 for `eight`,
212 for `twelve`. Other features cost nothing, whatever the width. Certificates retain rows with 8
bytes per entry for each scaling that dual members use, and 4 more.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.features.column_form import balanced_form
from dualstream.solvers.features.column_table import (
    BALANCED,
    COUNT,
    COUNTS,
    DELTA,
    FIRST,
    HELD,
    LAST,
    N_ENTRY,
    N_INTS,
    N_STATISTICS,
    NORM_NONE,
    NORM_ROW,
    NORM_RUNNING,
    PLACE,
    RAW,
    ROWS,
    SAMPLES,
    SUMS,
    USED,
    enter_buckets,
)
from dualstream.solvers.features.stage import grown
from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.losses.loss_table import make_loss
from dualstream.solvers.online.forgetting_windows import RowBuffer
from dualstream.solvers.portfolio import fused_kernels as _fused
from dualstream.solvers.portfolio.fused_kernels import (
    ADAGRAD,
    BASE,
    DAMPING,
    DECAY,
    DUAL,
    DUAL_PLACE,
    DUALS,
    INPUT,
    KIND,
    LOSS,
    N_NUMBERS,
    N_OF_DUAL,
    N_STEPS,
    N_WHAT,
    NEWTON,
    RISING,
    SECOND,
    SPG,
    STRENGTH,
)
from dualstream.solvers.portfolio.logistic_roots import N_LANES
from dualstream.solvers.portfolio.weighting_kernels import N_OUT
from dualstream.solvers.portfolio.weighting_state import Rule
from dualstream.solvers.protocols.certificate import Certificate, relative_gap
from dualstream.solvers.protocols.explanation import entries_of_last_row
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.served_form import Form, Linear, NormForm, StageForm
from dualstream.solvers.protocols.served_weights import ServedWeights, weights_listed
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.spec_cache import SharedDerived

_NORMS = {"none": NORM_NONE, "row": NORM_ROW, "running": NORM_RUNNING}
_LINE = 8
"""Floats of a cache line: blocks are aligned to cache lines."""


class Blueprint(SharedDerived):
    """Members' resolved specifications as kernel arguments."""

    def __init__(self, members: Sequence[Mapping[str, Any]]) -> None:
        self.members = list(members)
        # The bases of dual members come first: only these are stored with retained rows.
        self.what = np.zeros((len(members), N_WHAT), np.int64)
        self.numbers = np.zeros((len(members), N_NUMBERS))
        bases: list[tuple[int, float]] = []
        inputs: list[tuple[int, int]] = []
        starts: list[float] = []
        self.duals = 0
        for member in members:
            if kind_of(member) in (DUAL, RISING):
                _place(bases, base_of(member["scaling"]))
        self.dual_bases = len(bases)
        for member, what, numbers in zip(members, self.what, self.numbers, strict=True):
            base = _place(bases, base_of(member["scaling"]))
            what[BASE], what[INPUT] = base, _place(inputs, (base, _NORMS[member["norm"]]))
            what[KIND] = kind_of(member)
            what[SECOND] = what[DUAL_PLACE] = -1
            numbers[STRENGTH] = member.get("strength", member.get("eta", 1.0))
            numbers[DECAY] = member.get("gamma", 1.0)
            # The curvature is 1 for numbers and at most a quarter for classes.
            numbers[DAMPING] = 0.1 if member["loss"] == "logistic" else 1.0
            numbers[LOSS:] = loss_numbers(member["loss"])
            if what[KIND] in (ADAGRAD, NEWTON):
                what[SECOND] = len(starts)
                starts.append(start_of(member))
            elif what[KIND] in (DUAL, RISING):
                what[DUAL_PLACE] = self.duals
                self.duals += 1
        self.bases = np.array(bases, np.float64).reshape(-1, 2)
        self.inputs = np.array(inputs, np.int64).reshape(-1, 2)
        self.starts = np.array(starts, np.float64)

    @property
    def width(self) -> int:
        """Floats of a block."""
        used = N_STATISTICS + len(self.starts) + len(self.what)
        return -(-used // _LINE) * _LINE


class _Part(NamedTuple):
    """The blueprint of some members, and the indices of what they have in that of all."""

    plan: Blueprint
    members: list[int]
    inputs: list[int]
    seconds: list[int]
    duals: list[int]
    dual_bases: list[int]


@lru_cache(maxsize=8)
def _part_of(old: Blueprint, members: tuple[int, ...]) -> _Part:
    """Cached, because the portfolios of all classes drop the same members."""
    new = Blueprint([old.members[j] for j in members])
    bases = [old.bases.tolist().index(base) for base in new.bases.tolist()]
    inputs = [old.inputs.tolist().index([bases[b], n]) for b, n in new.inputs.tolist()]
    seconds, duals = (
        [number for number in old.what[list(members), place].tolist() if number >= 0]
        for place in (SECOND, DUAL_PLACE)
    )
    return _Part(new, list(members), inputs, seconds, duals, bases[: new.dual_bases])


def _place(names: list[Any], one: Any) -> int:
    if one not in names:
        names.append(one)
    return names.index(one)


def base_of(scaling: str | Mapping[str, Any]) -> tuple[int, float]:
    """Kind and power of the base of a resolved `scaling`."""
    if isinstance(scaling, str):
        return RAW, 0.0
    return (BALANCED if scaling["moments"] else COUNTS), scaling["power"]


def kind_of(member: Mapping[str, Any]) -> int:
    """The kernels' number of a member's kind."""
    if member["kind"] == "dual_ascent":
        return RISING if member["schedule"] == "inverse_sqrt" else DUAL
    return {"spg_fixed_total": SPG, "adagrad": ADAGRAD, "diagonal_newton": NEWTON}[member["kind"]]


def loss_numbers(loss: str | Mapping[str, Any]) -> Floats:
    """See losses.Loss.numbers."""
    if isinstance(loss, str):
        return make_loss(loss).numbers
    return make_loss(loss["kind"], next(v for k, v in loss.items() if k != "kind")).numbers


def start_of(member: Mapping[str, Any]) -> float:
    """Initial value of G or S of a feature."""
    if member["kind"] == "diagonal_newton":
        return 0.0
    return 1e-6 if member["loss"] == "logistic" else 1e-2


class Fused:
    """Members of the kinds of presets.py except `prior`, on rows of width `dim`.

    Labels are the members' targets: -1 and 1, or numbers. `reach` limits values, see
    column_table.limit_entries; 0 for no limit.
    """

    def __init__(self, plan: Blueprint, dim: int, retain: int, reach: float = 0.0) -> None:
        self.members = plan.members
        self.dim = dim
        self._plan = plan
        self._retain = retain if plan.duals else 0
        self._reach = reach
        n = len(self.members)
        self._f = np.zeros(SUMS + len(plan.inputs))
        self._k = np.zeros(N_INTS, np.int64)
        self._duals, self._own = np.zeros(n), np.zeros(n)
        self._dense, self._is_here = np.zeros(16, np.int32), np.zeros(17)
        self._squares, self._factors = np.zeros(len(plan.bases)), np.zeros(len(plan.inputs))
        self._steps = np.zeros((N_STEPS + 1, n))
        self._lanes = np.zeros((N_LANES, n + 3))
        self._slots = np.empty(0, np.int64)
        self._fit_row(64)
        columns = DUALS + N_OF_DUAL * plan.duals
        self._ring = RowBuffer(self._retain, columns, (plan.dual_bases,))
        self._store(np.array([dim], np.int32), self._new_blocks(1), 64)

    def __setstate__(self, attributes: Mapping[str, Any]) -> None:
        """Finish a copy: align its table."""
        vars(self).update(attributes)
        used = int(self._k[USED])
        self._store(self._touched[:used], self._table[:used], used)

    def _new_blocks(self, slots: int) -> Floats:
        """Initialised blocks of slots."""
        plan = self._plan
        blocks = np.zeros((slots, plan.width))
        blocks[:, self._second()] = plan.starts
        return blocks

    def _store(self, touched: npt.NDArray[np.int32], blocks: Floats, least: int) -> None:
        """Store these slots, the intercept's first, with room for at least `least`."""
        used, room = len(touched), 64
        while room < least:
            room *= 2
        self._touched = np.zeros(room, np.int32)
        self._touched[:used] = touched
        self._table = _aligned(room, blocks.shape[1])
        self._table[:used] = blocks
        self._buckets = np.zeros((2 * room, 2), np.int32)
        enter_buckets(self._buckets, self._touched, 1, used)
        self._k[USED] = used

    def _fit_row(self, entries: int) -> None:
        """Grow the scratch arrays for a row of this many entries and the intercept."""
        if entries + 1 > len(self._slots):
            room = 2 * (entries + 1)
            self._slots = np.empty(room, np.int64)
            self._e = np.empty((N_ENTRY, room))
            self._h = np.empty((len(self._plan.bases), room))
            self._d = np.empty((3 * len(self._plan.starts), room))

    def _make_room(self, entries: int) -> None:
        """Grow every array that lacks room for a row of this many entries."""
        k, ring = self._k, self._ring
        used, capacity = int(k[USED]), int(k[HELD])
        if used + entries > len(self._touched):
            self._store(self._touched[:used], self._table[:used], used + entries)
        if capacity + entries > len(self._dense):
            self._dense = grown(self._dense, capacity, capacity + entries)
            self._is_here = np.zeros(len(self._dense) + 1)
        self._fit_row(capacity + entries)
        if self._retain and (
            k[LAST] == len(ring.rows)
            or ring.starts[k[LAST]] + capacity + entries > len(ring.indices)
        ):
            ring.make_room(int(k[FIRST]), int(k[LAST]), capacity + entries)
            k[FIRST], k[LAST] = 0, k[LAST] - k[FIRST]

    # -- learning and scoring --------------------------------------------------------------------

    def learn(self, batch: Batch, columns: Ints, scores: Floats, rule: Rule) -> Floats:
        """Learn all rows and apply the weighting rule to each; score and loss of each row, (n, 2).

        Labels are -1 and 1. `scores` (n, all members) contains the scores of the other members and
        receives those of these in `columns`. A member with a score that is not finite is reset.
        O(entries K) per row.
        """
        n, row = len(batch), 0
        out, ring, plan = np.empty((n, N_OUT)), self._ring, self._plan
        while True:
            row = _fused.learn_rows(
                batch.indptr, batch.indices, batch.values, batch.labels, batch.weights, row,
                self._retain, rule.classes, self._reach, self._buckets, self._touched, self._table,
                self._dense, self._is_here, self._f, self._k, plan.what, plan.numbers,
                self._duals, plan.inputs, plan.bases, plan.starts, self._slots, self._e,
                self._h, self._d, self._squares, self._factors, self._steps, self._lanes, self._own,
                *ring.arrays, columns, scores, rule.roles, rule.r, rule.g, rule.recent, rule.pairs,
                rule.stack, rule.scratch, out,
            )  # fmt: skip
            if row == n:
                return out
            self._make_room(int(batch.indptr[row + 1] - batch.indptr[row]))

    def predict(self, batch: Batch) -> Floats:
        """Scores (n, K); labels are ignored."""
        return self._scored(batch)[0]

    def _scored(self, batch: Batch) -> tuple[Floats, Ints, Floats]:
        """The scores, and of the last row the slots and values of its entries."""
        plan = self._plan
        scores = np.empty((len(batch), len(self.members)))
        slots, e, h = self._slots, self._e, self._h
        room = batch.longest + int(self._k[HELD]) + 1
        if room > len(slots):
            # A read leaves the arrays of the learner as they are.
            slots, e, h = (
                np.empty(room, np.int64),
                np.empty((N_ENTRY, room)),
                np.empty((len(h), room)),
            )
        _fused.score_rows(
            batch.indptr, batch.indices, batch.values, self._reach, self._buckets, self._touched,
            self._table, self._dense, self._is_here, self._f, self._k, plan.what, plan.numbers,
            plan.inputs, plan.bases, plan.starts, slots, e, h, self._squares, self._factors, scores,
        )  # fmt: skip
        return scores, slots, h

    def explain(self, row: Batch) -> tuple[Floats, Floats, Ints, Floats]:
        """Scores (K,) of one row, bases (K,), features (n,) in any order, contributions (K, n).

        See protocols/explanation.py; numbers need not be finite.
        """
        (scores,), row_slots, row_values = self._scored(row)
        # This leaves the factors of the inputs in the scratch array.
        n = entries_of_last_row(len(row.indices), row_slots, self._dense[: self._k[HELD]])
        what, numbers = self._plan.what, self._plan.numbers
        entries = np.flatnonzero(row_slots[:n] >= 0)
        slots = row_slots[entries]
        scale = np.ones(len(self.members))
        rising = what[:, KIND] == RISING
        scale[rising] /= numbers[rising, STRENGTH] * math.sqrt(float(self._f[ROWS]) + 1.0)
        h = row_values[what[:, BASE]][:, entries]
        factors = scale * self._factors[what[:, INPUT]]
        contributions = factors[:, None] * (h * self._table[slots, : len(what)].T)
        bases = scale * self._table[0, : len(what)]
        return scores, bases, self._touched[slots].astype(np.int64), contributions

    # -- what a member says of itself ------------------------------------------------------------

    def served_weights(self, index: int) -> ServedWeights:
        """Weights and intercept of a member, for features after its scaling."""
        used, scale = int(self._k[USED]), self._weight_scale(index)

        def listed() -> tuple[Ints, Floats]:
            return self._touched[1:used].astype(np.int64), scale * self._table[1:used, index]

        return weights_listed(self.dim, scale * float(self._table[0, index]), listed)

    def form(self, index: int) -> Form:
        """See served_form: the member's score of a next row."""
        plan, used = self._plan, int(self._k[USED])
        what, numbers = plan.what[index], plan.numbers[index]
        order = np.argsort(self._touched[1:used])
        columns = self._touched[1:used][order].astype(np.int64)
        blocks = self._table[1:used][order]
        scale = 1.0
        if what[KIND] == RISING:
            scale = 1.0 / (float(numbers[STRENGTH]) * math.sqrt(float(self._f[ROWS]) + 1.0))
        weights = blocks[:, index]
        is_used = weights != 0.0
        intercept = scale * float(self._table[0, index])
        linear = Linear(columns[is_used], scale * weights[is_used], intercept)
        base, norm = plan.inputs[what[INPUT]].tolist()
        stages: list[StageForm] = []
        kind, power = plan.bases[base].tolist()
        if kind != RAW:
            reach = self._reach if kind == BALANCED else 0.0
            rows, moments = float(self._f[ROWS]), kind == BALANCED
            stages.append(balanced_form(columns, blocks, rows, power, reach, moments=moments))
        if norm == NORM_ROW:
            stages.append(NormForm(False))
        elif norm == NORM_RUNNING:
            squares = float(self._f[SUMS + what[INPUT]])
            stages.append(NormForm(True, float(self._f[ROWS]), squares))
        return Form(self.dim, tuple(stages), (linear,))

    def certificate(self, index: int) -> Certificate | None:
        """Certificate of a dual member, see protocols/certificate.py; None for the others.

        O(slots + rows retained).

        Its weights are those that its dual variables define, so the gap is that of the rows alone.
        """
        plan, delta, ring = self._plan, float(self._f[DELTA]), self._ring
        if plan.what[index, DUAL_PLACE] < 0:
            return None
        if delta == 0.0:
            return Certificate(0.0, 0.0, 0.0, 0.0, 0, 0.0, False)
        sums, scale = np.empty(3), self._weight_scale(index)
        _fused.member_sums(
            *ring.arrays, self._k, self._table, plan.what, plan.numbers, index, scale, sums
        )
        share, gap, square = sums.tolist()
        gap = gap / share
        strength = self._strength(index)
        dual = -(float(self._duals[index]) + 0.5 * strength * square) / delta
        rows = int(self._k[LAST] - self._k[FIRST])
        ratio = relative_gap(gap, dual + gap, dual)
        return Certificate(dual + gap, dual, gap, ratio, rows, min(1.0, share / delta), True)

    def _second(self) -> slice:
        """Position of G and S in a block."""
        return slice(len(self.members), len(self.members) + len(self._plan.starts))

    def _strength(self, index: int) -> float:
        """The current rho Delta of a dual member."""
        strength = float(self._plan.numbers[index, STRENGTH])
        is_rising = self._plan.what[index, KIND] == RISING
        return strength * math.sqrt(max(1.0, float(self._f[ROWS]))) if is_rising else strength

    def _weight_scale(self, index: int) -> float:
        return 1.0 / self._strength(index) if self._plan.what[index, KIND] == RISING else 1.0

    # -- changing the list -----------------------------------------------------------------------

    def without(self, *indices: int) -> "Fused":
        """The other members, with their state."""
        part = _part_of(self._plan, tuple(j for j in range(len(self.members)) if j not in indices))
        fewer = Fused(part.plan, self.dim, self._retain, self._reach)
        fewer._f[:SUMS], fewer._f[SUMS:] = self._f[:SUMS], self._f[SUMS:][part.inputs]
        fewer._k[:] = self._k
        fewer._duals[:] = self._duals[part.members]
        fewer._dense, fewer._is_here = self._dense.copy(), self._is_here.copy()
        self._give_blocks(fewer, part)
        if fewer._retain:
            self._give_ring(fewer, part)
        else:
            fewer._k[FIRST] = fewer._k[LAST] = 0
        return fewer

    def _give_blocks(self, fewer: "Fused", part: "_Part") -> None:
        used = int(self._k[USED])
        table, blocks = self._table[:used], fewer._new_blocks(used)
        blocks[:, : len(part.members)] = table[:, part.members]
        blocks[:, fewer._second()] = table[:, self._second()][:, part.seconds]
        blocks[:, -N_STATISTICS:] = table[:, -N_STATISTICS:]
        fewer._store(self._touched[:used], blocks, used)

    def _give_ring(self, fewer: "Fused", part: "_Part") -> None:
        starts_of = [DUALS + N_OF_DUAL * dual for dual in part.duals]
        columns = [*range(DUALS), *(at + j for at in starts_of for j in range(N_OF_DUAL))]
        first, last = int(self._k[FIRST]), int(self._k[LAST])
        starts, rows, slots, values = self._ring.rows_between(first, last)
        fewer._ring.store(starts, rows[:, columns], slots, values[part.dual_bases])
        fewer._k[FIRST], fewer._k[LAST] = 0, last - first

    # -- state -----------------------------------------------------------------------------------

    def state(self) -> State:
        """See Learner; the columns of blocks by slot, in the order in which slots were assigned."""
        used = int(self._k[USED])
        state = {
            "samples": np.array(self._k[SAMPLES]),
            "numbers": self._f.copy(),
            "dual_sums": self._duals.copy(),
            "touched": self._touched[:used].astype(np.int64),
            "statistics": self._table[:used, -N_STATISTICS:].copy(),
            "second": self._table[:used, self._second()].copy(),
            "weights": self._table[:used, : len(self.members)].copy(),
        }
        if self._retain:
            names = ("ring_starts", "ring_rows", "ring_slots", "ring_values")
            columns = self._ring.rows_between(int(self._k[FIRST]), int(self._k[LAST]))
            state |= dict(zip(names, columns, strict=True))
            state["ring_slots"] = state["ring_slots"].astype(np.int64)
        return state

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner: raises CorruptState, and then nothing has changed."""
        plan = self._plan
        used = len(np.atleast_1d(state.get("touched", np.empty(0))))
        shapes: dict[str, tuple[int, ...]] = {
            "samples": (),
            "numbers": self._f.shape,
            "dual_sums": self._duals.shape,
            "touched": (used,),
            "statistics": (used, N_STATISTICS),
            "second": (used, len(plan.starts)),
            "weights": (used, len(self.members)),
        }
        check_arrays(state, shapes)
        touched, statistics = state["touched"].astype(np.int64), state["statistics"]
        dense = self._dense_of(touched, statistics)
        ring = _checked_ring(state, self._ring, used) if self._retain else None
        blocks = self._new_blocks(used)
        blocks[:, -N_STATISTICS:] = statistics
        blocks[:, self._second()] = state["second"]
        blocks[:, : len(self.members)] = state["weights"]
        self._store(touched.astype(np.int32), blocks, used)
        self._f[:], self._duals[:] = state["numbers"], state["dual_sums"]
        self._dense = np.zeros(max(16, len(dense)), np.int32)
        self._dense[: len(dense)] = dense
        self._is_here = np.zeros(len(self._dense) + 1)
        self._k[HELD], self._k[SAMPLES] = len(dense), state["samples"]
        self._k[FIRST] = self._k[LAST] = 0
        if ring is not None:
            starts, rows, slots, values = ring
            self._ring.store(starts, rows, slots, values)
            self._k[LAST] = len(rows)

    def _dense_of(self, touched: Ints, statistics: Floats) -> Ints:
        """Slots of the dense columns in order."""
        used = len(touched)
        features = touched[1:]
        is_sound = (
            used > 0
            and touched[0] == self.dim
            and len(np.unique(features)) == used - 1
            and bool(np.all((features >= 0) & (features < self.dim)))
            and bool(np.all(statistics[1:, COUNT] >= 1.0))
        )
        order = statistics[:, PLACE]
        slots: Ints = np.argsort(order, kind="stable")[np.count_nonzero(order == 0.0) :]
        if not is_sound or not np.array_equal(order[slots], np.arange(1.0, len(slots) + 1.0)):
            raise CorruptState("the columns are damaged")
        return slots


def _checked_ring(
    state: Mapping[str, npt.NDArray[Any]], ring: RowBuffer, used: int
) -> tuple[npt.NDArray[Any], ...]:
    """Starts, rows, slots and values of the retained rows; raises CorruptState."""
    n = len(np.atleast_1d(state.get("ring_rows", np.empty(0))))
    entries = len(np.atleast_1d(state.get("ring_slots", np.empty(0))))
    check_arrays(
        state,
        {
            "ring_starts": (n + 1,),
            "ring_rows": (n, ring.rows.shape[1]),
            "ring_slots": (entries,),
            "ring_values": (ring.values.shape[0], entries),
        },
    )
    starts, slots = state["ring_starts"].astype(np.int64), state["ring_slots"].astype(np.int64)
    is_sound = (
        n <= ring.retain
        and starts[0] == 0
        and starts[-1] == entries
        and bool(np.all(np.diff(starts) >= 0))
        and bool(np.all((slots >= 0) & (slots < used)))
    )
    if not is_sound:
        raise CorruptState("the retained rows are damaged")
    return starts, np.asarray(state["ring_rows"]), slots, np.asarray(state["ring_values"])


def _aligned(rows: int, width: int) -> Floats:
    """Zeros (rows, width), aligned to a cache line."""
    flat = np.zeros(rows * width + _LINE)
    skip = -(flat.ctypes.data // flat.itemsize) % _LINE
    matrix: Floats = flat[skip : skip + rows * width].reshape(rows, width)
    return matrix
