"""O-DCA: one exact dual step per row, as the row comes in.

Ying, Yuan, Sayed, "Online dual coordinate ascent learning" (2016), eqs. (18)-(27). All windows
share one state, the numerator u = sum_n delta(n, N) lambda(n) h_n and Delta_N, so that the paper's
f_N(w') is u / (rho Delta_N) after decay or eviction, alpha(N) is 1 / (rho Delta_N), and N = 1 and
N = L need no case of their own. A row of weight c enters with delta = c.

To decay u in O(1) it is kept as `scale` v. The average (27), sum_n kappa^(N-n) w_n / S_N, is kept
as k (P v + z) / S: a step that adds g to v_j takes P g from z_j, so that neither costs more than
the row's entries. Two things are done to all coordinates, so rarely that it costs nothing per row:
where `scale` is below 1e-3, P v moves into z and the scale into v (else the rounding error of
P v + z grows without bound when kappa > beta); where k is below 1e-100, k moves into z and P.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from solvers._jit import (
    B1,
    F8,
    F8_2D,
    I4,
    I8,
    RO_F8,
    RO_F8_2D,
    RO_I4,
    RO_I8,
    Flags,
    Floats,
    Indices,
    Ints,
    f8,
    i8,
    kernel,
    types,
    void,
)
from solvers._scalar import dual_step, loss_value, prefetch, sigmoid
from solvers.batch import Batch
from solvers.certificate import Certificate, relative_gap, row_sums
from solvers.errors import InvalidRow
from solvers.features import Features
from solvers.learner import Outcome, State, check_arrays, count_nonzeros
from solvers.losses import make_loss
from solvers.regularizers import l2_sums
from solvers.windows import Ring, Window

# The numbers of a learner, in two arrays: first its state, then what its specification fixes.
SCALE, DELTA, CONJUGATE, AVG_P, AVG_K, AVG_S, IN_WINDOW, EVICTED = range(8)
RHO, BETA, KAPPA, BIAS, LOSS = range(8, 13)
N_FLOATS = LOSS + 6
SAMPLES, SINCE_RESUM, N_STEPS, FIRST, LAST = range(5)
LENGTH, RETAIN, RESUM_EVERY, AVERAGED, BINARY = range(5, 10)
N_INTS = 10

STATE_FLOATS = {
    "scale": SCALE,
    "delta": DELTA,
    "conjugate_sum": CONJUGATE,
    "average_p": AVG_P,
    "average_k": AVG_K,
    "average_s": AVG_S,
    "steps_in_window": IN_WINDOW,
    "steps_evicted": EVICTED,
}
STATE_INTS = {"samples": SAMPLES, "since_resum": SINCE_RESUM, "n_steps": N_STEPS}

# A step within these bounds cannot carry a finite number beyond the largest one: what is added is
# below half a unit in that one's last place.
_SMALL_STEP, _SMALL_NORM = 1e90, 1e180
_LARGE = 1e300
# Weights that a cache of the first or second level holds.
_CACHED = 32_768
_INFINITY = math.inf

# A sliding window is summed anew from its rows every 100 lengths, and when the steps taken out of
# it since then are this many times what is in it: their rounding would begin to show.
_OUTSIZED = 1e8


class DualAscent:
    """The learner of `algorithm: dual_ascent`; `spec` is a resolved one."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.spec = spec
        self._features = Features.of(spec)
        self._loss = make_loss(*loss_of(spec))
        self._window = Window.of(spec)
        self._ring = Ring(spec["retain"])
        average = spec["average"]
        # kappa = 0 averages one iterate: the last one, which is served anyway.
        kappa = average["kappa"] if average else 0.0
        length = self._window.length

        self._floats = floats = np.zeros(N_FLOATS)
        floats[SCALE] = floats[AVG_K] = 1.0
        floats[RHO], floats[BETA] = spec["rho"], self._window.beta
        floats[KAPPA], floats[BIAS] = kappa, self._features.bias
        floats[LOSS:] = self._loss.numbers
        self._ints = ints = np.zeros(N_INTS, np.int64)
        ints[LENGTH], ints[RETAIN] = length, spec["retain"]
        ints[RESUM_EVERY] = max(100 * length, self._features.width)
        ints[AVERAGED], ints[BINARY] = kappa > 0.0, spec["task"] == "binary"
        self._w = np.zeros((self._features.width, 2 if kappa > 0.0 else 1))
        self._saved = np.empty(0)
        self._fit_saved()

    def _fit_saved(self) -> None:
        """Room for what any retained row overwrites as it leaves the window."""
        if self._window.length:
            self._saved = np.empty(2 * (len(self._ring.values) + 1))

    def learn(self, batch: Batch) -> Outcome:
        """See Learner. O(entries) for each row, whatever the width."""
        self._features.check(batch)
        n = len(batch.labels)
        scores, losses = np.empty(n), np.empty(n)
        updated, rejected = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        ring = self._ring
        row = 0
        while True:
            row = learn_rows(
                batch.indptr, batch.indices, batch.values, batch.labels, batch.weights, row,
                scores, losses, updated, rejected, self._w, self._floats, self._ints,
                ring.starts, ring.indices, ring.values, ring.rows, self._saved,
            )  # fmt: skip
            if row == n:
                return Outcome(scores, losses, updated, rejected)
            if row < 0:
                raise _unknown_label(-1 - row, batch, self.spec["task"])
            entries = int(batch.indptr[row + 1] - batch.indptr[row])
            first, last = int(self._ints[FIRST]), int(self._ints[LAST])
            ring.make_room(first, last, entries)
            self._ints[FIRST], self._ints[LAST] = 0, last - first
            self._fit_saved()

    def predict(self, batch: Batch) -> Floats:
        """See Learner."""
        self._features.check(batch)
        scores = np.empty(len(batch.labels))
        score_rows(
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
        return served_factors(self._floats, self._ints)

    @property
    def weights(self) -> Floats:
        """See Learner."""
        fv, fz = self._served()
        dim = self._features.dim
        weights: Floats = fv * self._w[:dim, 0] + fz * self._w[:dim, -1]
        return weights

    @property
    def intercept(self) -> float:
        """See Learner."""
        fv, fz = self._served()
        return float(fv * self._w[-1, 0] + fz * self._w[-1, -1])

    @property
    def nonzeros(self) -> int:
        """See Learner."""
        return count_nonzeros(self.weights)

    @property
    def samples(self) -> int:
        """See Learner."""
        return int(self._ints[SAMPLES])

    def certificate(self) -> Certificate:
        """See certificate.py. O(dim + entries retained)."""
        floats, ints, ring = self._floats, self._ints, self._ring
        delta = float(floats[DELTA])
        if delta == 0.0:
            return Certificate(0.0, 0.0, 0.0, 0.0, 0, 0.0, False)
        sliding = self._window.length > 0
        first, last = int(ints[FIRST]), int(ints[LAST])
        if sliding:
            first = max(first, last - self._window.length)
        fv, fz = self._served()
        sums, regularizer = np.empty(4), np.empty(3)
        row_sums(
            ring.starts, ring.indices, ring.values, ring.rows, first, last,
            self._w, fv, fz, floats[BIAS], floats[BETA], self._loss.numbers, sums,
        )  # fmt: skip
        room = float(rho_delta(floats[RHO], delta))
        rho = room / delta
        l2_sums(self._w, fv, fz, float(floats[SCALE]) / room, regularizer)
        share, gap, primal, conjugate = sums.tolist()
        r_served, r_dual, r_excess = (rho * number for number in regularizer.tolist())
        gap = gap / share + r_excess
        if sliding:
            dual = -conjugate / share - r_dual
            primal = primal / share + r_served
        else:
            dual = -float(floats[CONJUGATE]) / delta - r_dual
            primal = dual + gap
        return Certificate(
            primal,
            dual,
            gap,
            relative_gap(gap, primal, dual),
            last - first,
            1.0 if sliding else min(1.0, share / delta),
            not sliding,
        )

    def state(self) -> State:
        """See Learner."""
        floats, ints = self._floats, self._ints
        state: State = {name: np.array(floats[at]) for name, at in STATE_FLOATS.items()}
        state |= {name: np.array(ints[at]) for name, at in STATE_INTS.items()}
        state["v"] = self._w[:, 0].copy()
        if ints[AVERAGED]:
            state["z"] = self._w[:, 1].copy()
        return state | self._ring.state(int(ints[FIRST]), int(ints[LAST]))

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner."""
        width, averaged = self._features.width, bool(self._ints[AVERAGED])
        shapes = dict.fromkeys(STATE_FLOATS, ()) | dict.fromkeys(STATE_INTS, ()) | {"v": (width,)}
        if averaged:
            shapes["z"] = (width,)
        check_arrays(state, shapes)
        rows = self._ring.restore(state, self._features.dim)
        for name, at in STATE_FLOATS.items():
            self._floats[at] = state[name]
        for name, at in STATE_INTS.items():
            self._ints[at] = state[name]
        self._ints[FIRST], self._ints[LAST] = 0, rows
        self._w[:, 0] = state["v"]
        if averaged:
            self._w[:, 1] = state["z"]
        self._fit_saved()


def loss_of(spec: Mapping[str, Any]) -> tuple[str, float | None]:
    """Name and parameter of the loss of a resolved specification."""
    loss = spec["loss"]
    if isinstance(loss, str):
        return loss, None
    return loss["kind"], next(value for name, value in loss.items() if name != "kind")


def _unknown_label(row: int, batch: Batch, task: str) -> InvalidRow:
    known = "-1, 0 or 1" if task == "binary" else "a finite number"
    return InvalidRow(row, f"the label must be {known}, got {float(batch.labels[row])!r}")


@kernel(f8(f8, f8))
def rho_delta(rho: float, delta: float) -> float:
    """rho Delta_N, what u is divided by: the one place that knows how it grows."""
    return rho * delta


@kernel(types.UniTuple(f8, 2)(RO_F8, RO_I8))
def served_factors(f: Floats, k: Ints) -> tuple[float, float]:
    """fv and fz: the served weights are fv v + fz z."""
    if k[AVERAGED] != 0:
        fz = f[AVG_K] / f[AVG_S] if f[AVG_S] > 0.0 else 0.0
        return fz * f[AVG_P], fz
    room = rho_delta(f[RHO], f[DELTA])
    return (f[SCALE] / room if room > 0.0 else 0.0), 0.0


@kernel(void(RO_I8, RO_I4, RO_F8, F8, RO_F8_2D, RO_F8, RO_I8))
def score_rows(
    indptr: Ints, indices: Indices, values: Floats, scores: Floats, w: Floats, f: Floats, k: Ints
) -> None:
    """Scores (n,) by the served weights, summed as learn_rows does."""
    fv, fz = served_factors(f, k)
    averaged = k[AVERAGED] != 0
    end_of_w = w.shape[0] - 1
    for i in range(scores.shape[0]):
        dv = dz = 0.0
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            x, j = values[p], np.uint32(indices[p])
            dv += x * w[j, 0]
            if averaged:
                dz += x * w[j, 1]
        dv += f[BIAS] * w[end_of_w, 0]
        if averaged:
            dz += f[BIAS] * w[end_of_w, 1]
        scores[i] = fv * dv + fz * dz


@kernel(void(RO_F8, F8))
def sigmoids(scores: Floats, out: Floats) -> None:
    """out = sigmoid(scores)."""
    for i in range(scores.shape[0]):
        out[i] = sigmoid(scores[i])


@kernel(void(F8_2D, f8, f8))
def flush(w: Floats, p: float, scale: float) -> None:
    """z += P v, v *= scale: the same weights with P = 0 and scale 1."""
    averaged = w.shape[1] == 2
    for j in range(w.shape[0]):
        if averaged:
            w[j, 1] += p * w[j, 0]
        w[j, 0] *= scale


@kernel(void(F8_2D, f8))
def scale_average(w: Floats, k: float) -> None:
    """z *= k: the same average with k = 1."""
    for j in range(w.shape[0]):
        w[j, 1] *= k


@kernel(types.UniTuple(f8, 2)(F8_2D, f8, f8, I8, I4, F8, F8_2D, i8, i8))
def resum(
    w: Floats,
    p: float,
    bias: float,
    starts: Ints,
    indices: Indices,
    values: Floats,
    rows: Floats,
    first: int,
    last: int,
) -> tuple[float, float]:
    """v = sum of c lambda h over the retained rows `first` to `last`.

    Takes away what additions and evictions left behind by rounding; z follows, so that the
    average stays what it is. Returns the sums of c and of |c lambda h|.
    """
    averaged = w.shape[1] == 2
    end_of_w = w.shape[0] - 1
    for j in range(w.shape[0]):
        if averaged:
            w[j, 1] += p * w[j, 0]
        w[j, 0] = 0.0
    delta = size = 0.0
    for i in range(first, last):
        delta += rows[i, 1]
        g = rows[i, 1] * rows[i, 2]
        norm = 0.0
        for q in range(starts[i], starts[i + 1]):
            norm += values[q] * values[q]
            w[indices[q], 0] += g * values[q]
        w[end_of_w, 0] += g * bias
        size += min(abs(g) * math.sqrt(norm + bias * bias), _LARGE)
    if averaged:
        for j in range(w.shape[0]):
            w[j, 1] -= p * w[j, 0]
    return delta, size


@kernel(
    i8(
        RO_I8, RO_I4, RO_F8, RO_F8, RO_F8, i8,
        F8, F8, B1, B1, F8_2D, F8, I8,
        I8, I4, F8, F8_2D, F8,
    )
)  # fmt: skip
def learn_rows(
    indptr: Ints,
    indices: Indices,
    values: Floats,
    labels: Floats,
    weights: Floats,
    start: int,
    scores: Floats,
    losses: Floats,
    updated: Flags,
    rejected: Flags,
    w: Floats,
    f: Floats,
    k: Ints,
    ring_starts: Ints,
    ring_indices: Indices,
    ring_values: Floats,
    ring_rows: Floats,
    saved: Floats,
) -> int:
    """Score and learn rows `start` to n; return n, or the row that the ring has no room for.

    Each row maximises the dual over its own lambda, once: (26a)-(26c) of the paper for R = |w|^2/2,
    as  min over tau of Q*(-tau) + tau m + s tau^2 / 2  with m = h.u / (rho Delta) after decay or
    eviction, s = c |h|^2 / (rho Delta); then u += c tau h. A row for which any number would not be
    finite is rejected: it changes nothing. A row of weight 0 is scored and counted and changes
    nothing else. Returns -1 - i, before any row is learned, where label i is unknown.

    indptr, indices, values, labels, weights   see Batch
    scores, losses, updated, rejected          (n,) written; the flags come in as False
    w       (width, 1 or 2)          v, and z where averaged; the last row is the intercept's
    f, k    (N_FLOATS,), (N_INTS,)   see the top of this file
    ring_*                           see windows.Ring; rows FIRST to LAST are retained
    saved   (2 entries + 2,)         scratch; entries of any retained row
    Cost O(entries) a row, but for what the top of this file says is done rarely.
    """
    n = labels.shape[0]
    binary = k[BINARY] != 0
    if start == 0:
        for i in range(n):
            y = labels[i]
            if y != y or (binary and not (y == 1.0 or y == -1.0 or y == 0.0)):
                return -1 - i

    scale, delta, conjugate = f[SCALE], f[DELTA], f[CONJUGATE]
    in_window, evicted_size = f[IN_WINDOW], f[EVICTED]
    avg_p, avg_k, avg_s = f[AVG_P], f[AVG_K], f[AVG_S]
    rho, beta, kappa, bias = f[RHO], f[BETA], f[KAPPA], f[BIAS]
    logistic, margin, eps, gamma = f[LOSS], f[LOSS + 1], f[LOSS + 2], f[LOSS + 3]
    b_lo, b_hi = f[LOSS + 4], f[LOSS + 5]
    samples, since_resum, n_steps = k[SAMPLES], k[SINCE_RESUM], k[N_STEPS]
    first, last = k[FIRST], k[LAST]
    length, retain, averaged = k[LENGTH], k[RETAIN], k[AVERAGED] != 0
    flush_below = 1e-3 if averaged else 1e-30
    fv, fz = served_factors(f, k)
    end_of_w = w.shape[0] - 1
    is_far = w.shape[0] * w.shape[1] > _CACHED

    i = start
    while i < n:
        begin, end = indptr[i], indptr[i + 1]
        if last == ring_rows.shape[0] or ring_starts[last] + end - begin > ring_values.shape[0]:
            break
        if is_far and i + 2 < n:
            for p in range(indptr[i + 2], indptr[i + 3]):
                prefetch(w, indices[p])
        y, c = labels[i], weights[i]
        if binary and y == 0.0:
            y = -1.0

        # The score, by the served weights.
        dv, dz, hh = 0.0, 0.0, 0.0
        for p in range(np.uint64(begin), np.uint64(end)):
            x, j = values[p], np.uint32(indices[p])
            dv += x * w[j, 0]
            if averaged:
                dz += x * w[j, 1]
            hh += x * x
        dv += bias * w[end_of_w, 0]
        if averaged:
            dz += bias * w[end_of_w, 1]
        hh += bias * bias
        score = fv * dv + fz * dz
        loss = loss_value(score, y, logistic, margin, eps, gamma, b_lo, b_hi)
        scores[i], losses[i] = score, loss
        if not (abs(score) < _INFINITY and loss < _INFINITY):
            scores[i] = losses[i] = np.nan
            rejected[i] = True
            i += 1
            continue
        if c == 0.0:
            samples += 1
            i += 1
            continue

        # The row that leaves a sliding window. What it overwrites is saved.
        evicted = last - length if length > 0 and last - first >= length else -1
        new_delta = beta * delta + c
        gone = 0.0
        is_evicting = False
        if evicted >= 0:
            old_c = ring_rows[evicted, 1]
            new_delta = delta - old_c + c
            # Where a sum of very unequal weights has lost its small ones, sum them again.
            if old_c > 1e6 * new_delta:
                new_delta = c
                for q in range(evicted + 1, last):
                    new_delta += ring_rows[q, 1]
            g = old_c * ring_rows[evicted, 2]
            is_evicting = g != 0.0
            if is_evicting:
                pg = avg_p * g
                norm = 0.0
                at = 0
                for q in range(ring_starts[evicted], ring_starts[evicted + 1]):
                    x, j = ring_values[q], np.uint32(ring_indices[q])
                    norm += x * x
                    saved[at] = w[j, 0]
                    w[j, 0] -= g * x
                    if averaged:
                        saved[at + 1] = w[j, 1]
                        w[j, 1] += pg * x
                    at += 2
                saved[at] = w[end_of_w, 0]
                w[end_of_w, 0] -= g * bias
                if averaged:
                    saved[at + 1] = w[end_of_w, 1]
                    w[end_of_w, 1] += pg * bias
                gone = min(abs(g) * math.sqrt(norm + bias * bias), _LARGE)
                dv = 0.0
                for p in range(np.uint64(begin), np.uint64(end)):
                    dv += values[p] * w[np.uint32(indices[p]), 0]
                dv += bias * w[end_of_w, 0]

        # The step.
        room = rho_delta(rho, new_delta)
        new_scale = beta * scale
        m = new_scale * dv / room
        s = c * hh / room
        tau, cost = dual_step(m, s, y, logistic, margin, eps, gamma, b_lo, b_hi)
        new_conjugate = beta * conjugate + c * cost
        is_due = new_scale < flush_below
        shrink, new_p = 1.0, avg_p
        if is_due:
            shrink, new_scale, new_p = new_scale, 1.0, 0.0
        new_fv = new_scale / room
        g = c * tau / new_scale
        pg = new_p * g
        new_k = fade = avg_k * kappa
        if averaged:
            if fade < 1e-100:
                new_p *= fade
                new_k = 1.0
            new_p += new_fv / new_k

        # Nothing is written before every number is known to be finite.
        finite = (
            abs(m) < _INFINITY
            and s < _INFINITY
            and new_fv < _INFINITY
            and abs(g) < _INFINITY
            and abs(pg) < _INFINITY
            and abs(new_conjugate) < _INFINITY
            and new_delta < _INFINITY
            and new_p < _INFINITY
        )
        if finite and not (abs(g) < _SMALL_STEP and abs(pg) < _SMALL_STEP and hh < _SMALL_NORM):
            for p in range(np.uint64(begin), np.uint64(end)):
                x, j = values[p], np.uint32(indices[p])
                finite = finite and abs(w[j, 0] * shrink + g * x) < _INFINITY
                if averaged:
                    finite = finite and abs(w[j, 1] - pg * x) < _INFINITY
        if finite and is_due and averaged:
            for at in range(w.shape[0]):
                finite = finite and abs(w[at, 1] + avg_p * w[at, 0]) < _INFINITY
        if not finite:
            if is_evicting:
                at = 0
                for q in range(ring_starts[evicted], ring_starts[evicted + 1]):
                    w[ring_indices[q], 0] = saved[at]
                    if averaged:
                        w[ring_indices[q], 1] = saved[at + 1]
                    at += 2
                w[end_of_w, 0] = saved[at]
                if averaged:
                    w[end_of_w, 1] = saved[at + 1]
            scores[i] = losses[i] = np.nan
            rejected[i] = True
            i += 1
            continue

        # Writing it down.
        if is_due:
            flush(w, avg_p, shrink)
        if averaged and new_k != fade:
            pg *= fade
            scale_average(w, fade)
        if g != 0.0:
            for p in range(np.uint64(begin), np.uint64(end)):
                x, j = values[p], np.uint32(indices[p])
                w[j, 0] += g * x
                if averaged:
                    w[j, 1] -= pg * x
            w[end_of_w, 0] += g * bias
            if averaged:
                w[end_of_w, 1] -= pg * bias
            updated[i] = end > begin or bias != 0.0
        at = ring_starts[last]
        shift = np.uint64(at) - np.uint64(begin)
        for p in range(np.uint64(begin), np.uint64(end)):
            ring_indices[p + shift] = indices[p]
            ring_values[p + shift] = values[p]
        at += end - begin
        ring_rows[last, 0], ring_rows[last, 1], ring_rows[last, 2] = y, c, tau
        last += 1
        ring_starts[last] = at
        if last - first > retain:
            first += 1
        samples += 1
        scale, delta, conjugate, avg_p, avg_k = new_scale, new_delta, new_conjugate, new_p, new_k
        if averaged:
            avg_s = kappa * avg_s + 1.0

        if length > 0:
            size = min(abs(g) * math.sqrt(hh), _LARGE)
            n_steps += (1 if g != 0.0 else 0) - (1 if is_evicting else 0)
            in_window = in_window + size - gone if n_steps > 0 else 0.0
            evicted_size += gone
            since_resum += 1
            if since_resum >= k[RESUM_EVERY] or (
                n_steps > 0 and evicted_size > _OUTSIZED * in_window
            ):
                delta, in_window = resum(
                    w, avg_p, bias, ring_starts, ring_indices, ring_values, ring_rows,
                    max(first, last - length), last,
                )  # fmt: skip
                since_resum = 0
                evicted_size = 0.0

        if averaged:
            fz = avg_k / avg_s
            fv = fz * avg_p
        else:
            fv = scale / rho_delta(rho, delta)
        i += 1

    f[SCALE], f[DELTA], f[CONJUGATE] = scale, delta, conjugate
    f[IN_WINDOW], f[EVICTED] = in_window, evicted_size
    f[AVG_P], f[AVG_K], f[AVG_S] = avg_p, avg_k, avg_s
    k[SAMPLES], k[SINCE_RESUM], k[N_STEPS] = samples, since_resum, n_steps
    k[FIRST], k[LAST] = first, last
    return i
