"""Refit of O-DCA: new dual variables for retained rows.

A refit computes them for a window that has moved on since. Fingerprints of the rows find those that
are still retained; newer rows keep their dual variables. The difference is added to u and to the
sum of conjugates. If every row that counts is retained, both are summed again from the rows, which
leaves no rounding error of the old values.
"""

import numpy as np
import numpy.typing as npt

from dualstream.solvers.jit import F8, F8_2D, I4, I8, RO_F8, Floats, Ints, kernel
from dualstream.solvers.losses.loss_kernels import loss_at, loss_value
from dualstream.solvers.online.dual_ascent import unlearn
from dualstream.solvers.online.dual_ascent.kernels import CONJUGATE, LAST, SCALE
from dualstream.solvers.online.forgetting_windows import DUAL, LABEL, WEIGHT, Ring

_Words = npt.NDArray[np.uint64]


def fingerprints_of(ring: Ring, first: int, last: int) -> Floats:
    """(last - first,): fingerprints, whole numbers below 2^53; equal rows have equal fingerprints.

    Of entries, label and weight, not of the dual variable. O(entries).
    """
    starts, rows, indices, values = ring.rows_between(first, last)
    # Integers wrap around, as in SplitMix64. Entries are summed: a row has each index once.
    entries = _mixed(_mixed(indices.astype(np.uint64)) ^ values.view(np.uint64))
    before = np.concatenate([np.zeros(1, np.uint64), np.cumsum(entries, dtype=np.uint64)])
    words = before[starts[1:]] - before[starts[:-1]]
    for column in (LABEL, WEIGHT):
        words = _mixed(words ^ _mixed(np.ascontiguousarray(rows[:, column]).view(np.uint64)))
    fingerprints: Floats = (words >> np.uint64(11)).astype(np.float64)
    return fingerprints


def _mixed(z: _Words) -> _Words:
    z = (z + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    words: _Words = z ^ (z >> np.uint64(31))
    return words


@kernel
def overlap(then: RO_F8, now: RO_F8, scratch: I8) -> int:
    """Length of the longest suffix of `then` that is a prefix of `now`.

    scratch  (len(now),)
    Knuth, Morris and Pratt, "Fast pattern matching in strings" (1977). Cost O(then + now).
    """
    if now.shape[0] == 0:
        return 0
    scratch[0] = 0
    length = 0
    for i in range(1, now.shape[0]):
        while length > 0 and now[i] != now[length]:
            length = scratch[length - 1]
        if now[i] == now[length]:
            length += 1
        scratch[i] = length
    length = 0
    for i in range(then.shape[0]):
        if length == now.shape[0]:
            length = scratch[length - 1]
        while length > 0 and then[i] != now[length]:
            length = scratch[length - 1]
        if then[i] == now[length]:
            length += 1
    return length


def take_in(
    fingerprints: Floats, duals: Floats, share: float, ring: Ring, w: Floats, f: Floats, k: Ints
) -> int:
    """Move the retained rows with these fingerprints to these dual variables; return their number.

    fingerprints, duals  (n,)  of the refitted window, the oldest row first
    share          of the step from the old to the new values, in (0, 1]
    w, f and k are those of kernels.py. The average restarts empty. If no row is found nothing
    changes. The caller must check that the results are finite. O(width + entries retained).
    """
    first, last = unlearn.first_that_counts(k), int(k[LAST])
    now = fingerprints_of(ring, first, last)
    count = int(overlap(fingerprints, now, np.empty(max(1, len(now)), np.int64)))
    if count == 0:
        return 0
    is_whole = unlearn.all_is_retained(ring, w, f, k)
    u = np.zeros(len(w))
    _, conjugate, _, _ = unlearn.sum_of(ring, f, u, first, last)
    duals_now, new = ring.rows[first : first + count, DUAL], duals[len(duals) - count :]
    duals_now[:] = new if share == 1.0 else duals_now + share * (new - duals_now)
    if is_whole:
        unlearn.recompute_sums(ring, w, f, k)
    else:
        now_u = np.zeros(len(w))
        _, new_conjugate, _, _ = unlearn.sum_of(ring, f, now_u, first, last)
        w[:, 0] += (now_u - u) / f[SCALE]
        f[CONJUGATE] += new_conjugate - conjugate
    unlearn.forget_average(w, f)
    return count


@kernel
def row_losses(
    starts: I8,
    indices: I4,
    values: F8,
    rows: F8_2D,
    first: int,
    w: RO_F8,
    bias: float,
    offset: float,
    loss: RO_F8,
    out: F8,
) -> None:
    """out (n,) += the loss of retained rows `first`, first + 1, ... at the weights w (width,).

    offset   of every score
    """
    end_of_w = w.shape[0] - 1
    for i in range(out.shape[0]):
        row = first + i
        z = bias * w[end_of_w] + offset
        for p in range(starts[row], starts[row + 1]):
            z += values[p] * w[indices[p]]
        out[i] += loss_value(z, rows[row, 0], loss_at(loss, 0))
