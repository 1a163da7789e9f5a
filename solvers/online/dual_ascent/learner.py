"""O-DCA: online dual coordinate ascent, one exact dual step per row.

Kernels: kernels.py for l2, general_kernels.py for elastic net and entropy.

`replay` takes more such steps on retained rows, drawn uniformly: `steps` after each row, or after
every `every` rows enough steps to bring the relative gap below `until_gap`. Rows of weight 0 count
for neither. The average takes each iterate as it is after its replay.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from sys import getsizeof
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState, InvalidRow, RefitError, UnlearningError
from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.losses.loss_table import Loss
from dualstream.solvers.online.dual_ascent import general_kernels as _general, kernels as _l2
from dualstream.solvers.online.dual_ascent.refit import take_in
from dualstream.solvers.online.dual_ascent.regularizers import l2_sums
from dualstream.solvers.online.dual_ascent.replay import draw_visits
from dualstream.solvers.online.dual_ascent.unlearn import take_out
from dualstream.solvers.online.forgetting_windows import RING, Ring, Window
from dualstream.solvers.online.table_learner import loss_of, sigmoids
from dualstream.solvers.protocols.certificate import Certificate, relative_gap, row_sums
from dualstream.solvers.protocols.learner import Outcome, State
from dualstream.solvers.protocols.served_weights import (
    BLOCK,
    ServedWeights,
    count_nonzeros,
    weights_in_parts,
)
from dualstream.solvers.protocols.state_numbers import check_arrays, is_storable
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.intercept import Features
from dualstream.solvers.rows.scalar import prior_odds
from dualstream.solvers.spec_cache import SharedDerived, derived_once

STATE_FLOATS = {
    "scale": _l2.SCALE,
    "delta": _l2.DELTA,
    "conjugate_sum": _l2.CONJUGATE,
    "average_p": _l2.AVG_P,
    "average_k": _l2.AVG_K,
    "average_s": _l2.AVG_S,
    "steps_in_window": _l2.IN_WINDOW,
    "steps_evicted": _l2.EVICTED,
}
STATE_INTS = {
    "samples": _l2.SAMPLES,
    "since_resum": _l2.SINCE_RESUM,
    "n_steps": _l2.N_STEPS,
    "since_replay": _l2.SINCE_REPLAY,
    "visits": _l2.VISITS,
}

# Visits drawn at once, if more than one row needs some.
_AHEAD = 65_536
# Batches of at least this many rows are bulk.
_BULK_ROWS = 256
# Arrays of a ring, for a kernel that does not use it.
_NO_RING = (np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0), np.empty((0, 3)))

_Served = Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True)
class _Plan(SharedDerived):
    """Constants that follow from a specification alone.

    floats, ints   initial scalars of a learner
    columns        number of columns of its weights
    """

    features: Features
    loss: Loss
    window: Window
    floats: Floats
    ints: Ints
    columns: int
    is_l2: bool
    is_plain: bool
    """Only l2 has a kernel without visits."""


@derived_once
def _plan_of(spec: Mapping[str, Any]) -> _Plan:
    features, window = Features.of(spec), Window.of(spec)
    loss = loss_of(spec)
    kind, threshold = regularizer_of(spec)
    average = spec["average"]
    # kappa = 0 averages one iterate: the last one, which is served anyway.
    kappa = average["kappa"] if average else 0.0
    length, replay = window.length, spec["replay"]
    floats, ints = np.zeros(_l2.N_FLOATS), np.zeros(_l2.N_INTS, np.int64)
    floats[_l2.SCALE] = floats[_l2.AVG_K] = 1.0
    floats[_l2.RHO], floats[_l2.STRENGTH] = spec.get("rho", 0.0), spec.get("strength", 0.0)
    floats[_l2.BETA] = window.beta
    floats[_l2.KAPPA], floats[_l2.BIAS] = kappa, features.bias
    floats[_l2.LOSS : _l2.POSITIVE] = loss.numbers
    floats[_l2.THRESHOLD] = threshold
    ints[_l2.LENGTH], ints[_l2.RETAIN] = length, spec["retain"]
    ints[_l2.RESUM_EVERY] = max(100 * length, features.width)
    ints[_l2.AVERAGED], ints[_l2.BINARY] = kappa > 0.0, spec["task"] == "binary"
    ints[_l2.ENTROPY], ints[_l2.PRIOR] = kind == "entropy", features.has_prior
    ints[_l2.STEPS], ints[_l2.EVERY] = replay.get("steps", 0), replay.get("every", 0)
    is_l2, visits = kind == "l2", bool(ints[_l2.STEPS] or ints[_l2.EVERY])
    columns = 2 if kappa > 0.0 else 1
    floats.flags.writeable = ints.flags.writeable = False
    return _Plan(features, loss, window, floats, ints, columns, is_l2, is_l2 and not visits)


class DualAscent:
    """The learner of `algorithm: dual_ascent`; `spec` is resolved."""

    __slots__ = (
        "__weakref__",
        "_features",
        "_floats",
        "_ints",
        "_is_l2",
        "_is_plain",
        "_kernels",
        "_loss",
        "_ring",
        "_saved",
        "_second",
        "_w",
        "_window",
        "spec",
    )

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.spec = spec
        plan = _plan_of(spec)
        self._features, self._loss, self._window = plan.features, plan.loss, plan.window
        self._ring = Ring(spec["retain"])
        self._floats, self._ints = plan.floats.copy(), plan.ints.copy()
        self._is_l2, self._is_plain = plan.is_l2, plan.is_plain
        self._second = "z" if self._is_l2 else "average"
        self._kernels: Any = _l2 if self._is_l2 else _general
        self._w = np.zeros((self._features.width, plan.columns))
        self._saved = np.empty(0)
        self._fit_saved()

    def _fit_saved(self) -> None:
        """Grow `saved` for the largest retained row, which overwrites as many weights when it
        leaves."""
        if self._window.length:
            self._saved = np.empty(2 * (len(self._ring.values) + 1))

    @property
    def bytes_held(self) -> int:
        """Memory in bytes."""
        parts = (self._w, self._floats, self._ints, self._saved, self._ring)
        return sum(map(getsizeof, parts)) + self._ring.bytes_held

    def learn(self, batch: Batch) -> Outcome:
        """See Learner. O(entries) per row and per visit, independent of the width.

        With entropy, and with averaged elastic net, O(width) more per row; with entropy also
        O(width) per visit.
        """
        batch.check_width(self._features.dim)
        n = len(batch.labels)
        out = Outcome(np.empty(n), np.empty(n), np.zeros(n, np.bool_), np.zeros(n, np.bool_))
        row = 0
        while True:
            row = self._learn_rows(batch, row, out)
            if self._ints[_l2.DUE]:
                self._ints[_l2.DUE] = 0
                self._close_gap()
            if row == n:
                return out
            if row < 0:
                bad = -1 - row
                label, is_binary = float(batch.labels[bad]), bool(self._ints[_l2.BINARY])
                raise InvalidRow.of_label(bad, label, is_binary)
            self._make_room(int(batch.indptr[row + 1] - batch.indptr[row]))

    def _learn_rows(self, batch: Batch, row: int, out: Outcome) -> int:
        """Learn rows from `row`; the first that was not learned, or -1 - i for a bad row i."""
        ring, n = self._ring, len(batch.labels)
        if self._is_plain:
            # In bulk, rows that the last ones evict need not enter the ring.
            is_bulk = not self._window.length and n - row >= max(ring.retain, _BULK_ROWS)
            saved = self._saved
            if is_bulk:
                saved = np.empty(n)
                saved.fill(np.nan)
            arrays = _NO_RING if is_bulk else ring.arrays
            stopped: int = _l2.learn_rows(
                batch.arrays, row, n, out.arrays, self._w, self._floats, self._ints, arrays, saved
            )
            if is_bulk and stopped == n:
                self._retain(batch, saved)
            return stopped
        steps = int(self._ints[_l2.STEPS])
        visits = self._draw(max(steps, min(steps * (n - row), _AHEAD)))
        stopped = self._kernels.learn_and_replay(
            batch.arrays, row, visits, out.arrays, self._w, self._floats, self._ints, ring.arrays,
            self._saved,
        )  # fmt: skip
        return stopped

    def _retain(self, batch: Batch, taus: Floats) -> None:
        """Retain the last of the rows that have a tau, and as many earlier retained rows as fit."""
        ints = self._ints
        first, last, is_binary = int(ints[_l2.FIRST]), int(ints[_l2.LAST]), bool(ints[_l2.BINARY])
        ints[_l2.FIRST], ints[_l2.LAST] = self._ring.keep_last(batch, taus, is_binary, first, last)

    def _draw(self, count: int) -> Floats:
        return draw_visits(self.spec["seed"], int(self._ints[_l2.VISITS]), count)

    def _close_gap(self) -> None:
        """Visit `every` rows at a time until the relative gap is small, at most `max_steps` times.

        A step is one visit per row learned since the last attempt. Each evaluation of the gap costs
        as much as `certificate`.
        """
        replay, ring = self.spec["replay"], self._ring
        for _ in range(replay["max_steps"]):
            if self._certified()[0].relative_gap <= replay["until_gap"]:
                return
            visits = self._draw(replay["every"])
            self._kernels.replay(
                visits, 0, len(visits), ring.arrays, self._w, self._floats, self._ints
            )

    def _make_room(self, entries: int) -> None:
        """Make room in the ring for one more row of this many entries."""
        ring, first, last = self._ring, int(self._ints[_l2.FIRST]), int(self._ints[_l2.LAST])
        if last < len(ring.rows) and ring.starts[last] + entries <= len(ring.values):
            return
        ring.make_room(first, last, entries)
        self._ints[_l2.FIRST], self._ints[_l2.LAST] = 0, last - first
        self._fit_saved()

    def predict(self, batch: Batch) -> Floats:
        """See Learner."""
        batch.check_width(self._features.dim)
        scores = np.empty(len(batch.labels))
        self._kernels.score_rows(
            batch.indptr, batch.indices, batch.values, scores, self._w, self._floats, self._ints
        )
        return scores

    def probabilities(self, scores: Floats) -> Floats | None:
        """See Learner."""
        if not self._loss.logistic:
            return None
        out = np.empty(len(scores))
        sigmoids(scores, out)
        return out

    def _served(self) -> tuple[float, float]:
        return _l2.served_factors(self._floats, self._ints)

    def _weights(self) -> Floats:
        """The served weights, (width,), the intercept's last, without `_odds`."""
        if self._is_l2:
            fv, fz = self._served()
            weights: Floats = fv * self._w[:, 0] + fz * self._w[:, -1]
            return weights
        weights = np.empty(len(self._w))
        _general.served_weights(self._w, self._floats, self._ints, weights)
        return weights

    @property
    def weights(self) -> Floats:
        """See Learner."""
        return self._weights()[:-1]

    @property
    def intercept(self) -> float:
        """See Learner."""
        return self._intercept(self._served_by())

    def _intercept(self, served: _Served) -> float:
        if self._floats[_l2.BIAS] == 0.0:
            return 0.0
        return float(served(self._w[-1:])[0]) + self._odds

    @property
    def _odds(self) -> float:
        """What is added to every score: log odds with `intercept: prior`, otherwise 0."""
        if not self._ints[_l2.PRIOR]:
            return 0.0
        return float(prior_odds(self._floats, _l2.POSITIVE))

    def served_weights(self) -> list[ServedWeights]:
        """See Learner. O(width) with entropy."""
        w, served = self._w, self._served_by()

        def part(first: int, last: int) -> Floats:
            return served(w[first:last])

        return [weights_in_parts(self._features.dim, self._intercept(served), part)]

    def _served_by(self) -> _Served:
        """Function that returns the served weights of some rows of the table."""
        floats, ints = self._floats, self._ints
        if self._is_l2:
            fv, fz = self._served()

            def served_l2(rows: Floats) -> Floats:
                weights: Floats = fv * rows[:, 0] + fz * rows[:, -1]
                return weights

            return served_l2
        numbers = _general.served_numbers(self._w, floats, ints)

        def served(rows: Floats) -> Floats:
            weights = np.empty(len(rows))
            _general.served_rows(rows, floats, ints, *numbers, weights)
            return weights

        return served

    def _regularizer_sums(self, factor: float, served: _Served) -> Floats:
        """(3,): as `l2_sums`, with w' = factor v. Reads one block of the weights after another."""
        w, floats, ints, sums = self._w, self._floats, self._ints, np.zeros(3)
        numbers = factor, *_general.shift_and_sum(w, floats, ints, factor)
        stop = len(w) if floats[_l2.BIAS] != 0.0 else len(w) - 1
        for first in range(0, stop, BLOCK):
            rows = w[first : min(first + BLOCK, stop)]
            _general.add_regularizer(rows, served(rows), floats, ints, *numbers, sums)
        return sums

    def _by_entry(
        self, arrays: RING, first: int, last: int, served: _Served
    ) -> tuple[RING, Floats]:
        """The arrays of a ring, and the served weights of its coordinates as a column.

        In a wide model each entry of the rows `first` to `last` gets a coordinate of its own, so
        that no array has the width of the model. The intercept is the last coordinate.
        """
        if len(self._w) <= BLOCK:
            return arrays, self._weights().reshape(-1, 1)
        starts, indices, values, rows = arrays
        begin, end = int(starts[first]), int(starts[last])
        weights = np.empty((end - begin + 1, 1))
        weights[:-1, 0] = served(self._w[indices[begin:end]])
        weights[-1, 0] = self._intercept(served)
        entries = np.arange(end - begin, dtype=np.int32)
        return (starts - begin, entries, values[begin:end], rows), weights

    @property
    def nonzeros(self) -> int:
        """See Learner."""
        return count_nonzeros(self.served_weights())

    @property
    def samples(self) -> int:
        """See Learner."""
        return int(self._ints[_l2.SAMPLES])

    def certificate(self) -> Certificate:
        """See protocols/certificate.py. O(width + entries retained) time; memory for a block."""
        certificate, values = self._certified()
        if math.isfinite(values):
            return certificate
        # A row's loss overflows. The kernel's sum of gaps leaves such a row out.
        return replace(certificate, primal=math.inf, gap=math.inf, relative_gap=math.inf)

    def _certified(self) -> tuple[Certificate, float]:
        """The certificate from the sums of the kernel, and the sum of the losses."""
        floats, ints, ring = self._floats, self._ints, self._ring
        delta = float(floats[_l2.DELTA])
        if delta == 0.0:
            return Certificate(0.0, 0.0, 0.0, 0.0, 0, 0.0, False), 0.0
        sliding = self._window.length > 0
        first, last = int(ints[_l2.FIRST]), int(ints[_l2.LAST])
        if sliding:
            first = max(first, last - self._window.length)
        room = float(_l2.rho_delta(floats, delta))
        rho = room / delta
        sums, regularizer, arrays = np.empty(4), np.empty(3), ring.arrays
        if self._is_l2:
            w, (fv, fz) = self._w, self._served()
            l2_sums(w, fv, fz, float(floats[_l2.SCALE]) / room, regularizer)
        else:
            served = self._served_by()
            regularizer = self._regularizer_sums(float(floats[_l2.SCALE]) / room, served)
            arrays, w = self._by_entry(arrays, first, last, served)
            fv, fz = 1.0, 0.0
        beta, bias = floats[_l2.BETA], floats[_l2.BIAS]
        row_sums(*arrays, first, last, w, fv, fz, bias, self._odds, beta, self._loss.numbers, sums)
        share, gap, primal, conjugate = sums.tolist()
        values = primal
        r_served, r_dual, r_excess = (rho * number for number in regularizer.tolist())
        # The conjugate of a loss at z + odds, and of R with its centre at the odds.
        r_dual += self._odds * float(floats[_l2.SCALE] * self._w[-1, 0]) / delta
        gap = gap / share + r_excess
        if sliding:
            dual = -conjugate / share - r_dual
            primal = primal / share + r_served
        else:
            dual = -float(floats[_l2.CONJUGATE]) / delta - r_dual
            primal = dual + gap
        certificate = Certificate(
            primal,
            dual,
            gap,
            relative_gap(gap, primal, dual),
            last - first,
            1.0 if sliding else min(1.0, share / delta),
            not sliding,
        )
        return certificate, values

    @property
    def retained(self) -> int:
        """See Unlearner."""
        return int(self._ints[_l2.LAST] - self._ints[_l2.FIRST])

    def unlearn(self, age: int) -> None:
        """See Unlearner. O(width + entries retained)."""
        if not 0 <= age < self.retained:
            raise ValueError(f"{self.retained} rows are retained; there is none of age {age}")
        before = self.state()
        with np.errstate(over="ignore", invalid="ignore"):
            take_out(age, self._ring, self._w, self._floats, self._ints)
            self._fit_saved()
            self._begin_average()
            numbers = (self._floats[: _l2.LOSS], self._w, self._weights())
        if not all(map(is_storable, numbers)):
            self.restore(before)
            raise UnlearningError("without this row, some number would not be finite")

    @property
    def problems(self) -> list["DualAscent"]:
        """See Refittable."""
        return [self]

    def take_duals(self, fingerprints: Floats, duals: Floats, share: float) -> int:
        """See Refittable. O(width + entries retained)."""
        arrays = (self._ring, self._w, self._floats, self._ints)
        with np.errstate(over="ignore", invalid="ignore"):
            rows = take_in(fingerprints[0], duals[0], share, *arrays)
            if rows:
                self._begin_average()
            numbers = (self._floats[: _l2.LOSS], self._w, self._weights())
        if not all(map(is_storable, numbers)):
            raise RefitError("with these dual variables, some number would not be finite")
        return rows

    def _begin_average(self) -> None:
        """Restart the average at the current iterate; empty before the first row."""
        floats = self._floats
        if not self._ints[_l2.AVERAGED] or floats[_l2.DELTA] == 0.0:
            return
        if self._is_l2:
            room = _l2.rho_delta(floats, floats[_l2.DELTA])
            floats[_l2.AVG_P] = floats[_l2.SCALE] / room
        else:
            self._w[:, 1] = self._weights()
        floats[_l2.AVG_S] = 1.0

    def state(self) -> State:
        """See Learner."""
        floats, ints = self._floats, self._ints
        state: State = {name: np.array(floats[at]) for name, at in STATE_FLOATS.items()}
        state |= {name: np.array(ints[at]) for name, at in STATE_INTS.items()}
        if ints[_l2.PRIOR]:
            state["prior"] = floats[_l2.POSITIVE :].copy()
        state["v"] = self._w[:, 0].copy()
        if ints[_l2.AVERAGED]:
            state[self._second] = self._w[:, 1].copy()
        return state | self._ring.state(int(ints[_l2.FIRST]), int(ints[_l2.LAST]))

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner."""
        width, averaged = self._features.width, bool(self._ints[_l2.AVERAGED])
        shapes = dict.fromkeys(STATE_FLOATS, ()) | dict.fromkeys(STATE_INTS, ()) | {"v": (width,)}
        if averaged:
            shapes[self._second] = (width,)
        if self._ints[_l2.PRIOR]:
            shapes["prior"] = (2,)
        check_arrays(state, shapes)
        if self._ints[_l2.PRIOR] and not (state["prior"] >= 0.0).all():
            raise CorruptState("the prior is negative")
        rows = self._ring.restore(state, self._features.dim)
        for name, at in STATE_FLOATS.items():
            self._floats[at] = state[name]
        for name, at in STATE_INTS.items():
            self._ints[at] = state[name]
        self._ints[_l2.FIRST], self._ints[_l2.LAST] = 0, rows
        if self._ints[_l2.PRIOR]:
            self._floats[_l2.POSITIVE :] = state["prior"]
        self._w[:, 0] = state["v"]
        if averaged:
            self._w[:, 1] = state[self._second]
        self._fit_saved()


def regularizer_of(spec: Mapping[str, Any]) -> tuple[str, float]:
    """Name of the regularizer of a resolved specification, and its delta, 0 without one."""
    regularizer = spec["regularizer"]
    if isinstance(regularizer, str):
        return regularizer, 0.0
    return regularizer["kind"], regularizer["delta"]
