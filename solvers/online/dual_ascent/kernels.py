"""O-DCA kernels for l2: scoring rows, and learning each by one exact dual step.

Ying, Yuan, Sayed, "Online dual coordinate ascent learning" (2016), eqs. (18)-(27). All windows
share one state, the numerator u = sum_n delta(n, N) lambda(n) h_n and Delta_N: the paper's f_N(w')
is u / (rho Delta_N) after decay or eviction, alpha(N) is 1 / (rho Delta_N), and N = 1 and N = L are
not special cases. A row of weight c enters with delta = c. With `strength`, rho Delta is that
number at every N, so rho = strength / Delta_N: the sum of the losses plus a fixed prior, strength
|w|^2 / 2, with a step that does not shrink.

u is stored as `scale` v, and the average (27) as in averaged_table.py. A sliding window is summed
again from its rows, rarely enough to cost nothing per row.

In every kernel
    w   (width, 1 or 2)          v, and z where averaged; the last row is the intercept's
    f   (N_FLOATS,), k (N_INTS,) the scalars of a learner, see below
    bias                         the last coordinate of every row: 1.0 or 0.0
    starts, indices, values, rows (ring_ in kernels that also take a batch)
                         see forgetting_windows.Ring
"""

import math

import numpy as np

from dualstream.solvers.jit import F8, F8_2D, I4, I8, RO_F8, RO_I4, RO_I8, kernel
from dualstream.solvers.losses.loss_kernels import dual_step, loss_at, loss_conjugate, loss_value
from dualstream.solvers.online import averaged_table as table
from dualstream.solvers.online.forgetting_windows import RING, retain_row
from dualstream.solvers.protocols.learner import RESULTS
from dualstream.solvers.rows.batch import ROWS
from dualstream.solvers.rows.scalar import (
    CACHED,
    SMALL_NORM,
    SMALL_STEP,
    prefetch,
    prior_odds,
    unknown_label,
)

# Indices of a learner's scalars, in two arrays: first its state, then constants of its
# specification.
SCALE, DELTA, CONJUGATE, AVG_P, AVG_K, AVG_S, IN_WINDOW, EVICTED = range(8)
RHO, STRENGTH, BETA, KAPPA, BIAS, THRESHOLD, LOSS = range(8, 15)
POSITIVE = LOSS + 6
"""Weights of positive and of negative labels so far, state of `intercept: prior`."""
N_FLOATS = POSITIVE + 2
SAMPLES, SINCE_RESUM, N_STEPS, SINCE_REPLAY, VISITS, FIRST, LAST = range(7)
LENGTH, RETAIN, RESUM_EVERY, AVERAGED, BINARY, STEPS, EVERY, DUE, ENTROPY, PRIOR = range(7, 17)
N_INTS = 17

_TINY, _LARGE = 1e-300, 1e300

# A sliding window is summed again from its rows every 100 lengths, and when the total of the
# removed steps exceeds the current total by this factor: then their rounding errors begin to
# matter.
OUTSIZED = 1e8


@kernel
def rho_delta(f: RO_F8, delta: float) -> float:
    """rho Delta_N, the divisor of u; `strength` fixes it unless it is 0."""
    return float(f[STRENGTH] if f[STRENGTH] > 0.0 else f[RHO] * delta)


@kernel
def served_factors(f: RO_F8, k: RO_I8) -> tuple[float, float]:
    """fv and fz: the served weights are fv v + fz z."""
    if k[AVERAGED] != 0:
        fz = f[AVG_K] / f[AVG_S] if f[AVG_S] > 0.0 else 0.0
        return fz * f[AVG_P], fz
    room = rho_delta(f, f[DELTA])
    return (f[SCALE] / room if room > 0.0 else 0.0), 0.0


@kernel
def score_rows(
    indptr: RO_I8, indices: RO_I4, values: RO_F8, scores: F8, w: F8_2D, f: RO_F8, k: RO_I8
) -> None:
    """Scores (n,) by the served weights, equal to the bit to those of learn_rows."""
    fv, fz = served_factors(f, k)
    for i in range(scores.shape[0]):
        dv, dz, _ = table.row_products(indices, values, indptr[i], indptr[i + 1], w, f[BIAS])
        scores[i] = fv * dv + fz * dz
        if k[PRIOR] != 0:
            scores[i] += prior_odds(f, POSITIVE)


@kernel
def size_of(g: float, hh: float) -> float:
    """|g h|, and never 0 unless g is 0."""
    return min(max(abs(g) * math.sqrt(hh), _TINY), _LARGE) if g != 0.0 else 0.0


@kernel(inner=True)
def count_step(size: float, gone: float, f: F8, k: I8) -> None:
    """Count a step of a sliding window in the sizes of all of them, and one that it replaces."""
    k[N_STEPS] += (1 if size > 0.0 else 0) - (1 if gone > 0.0 else 0)
    f[IN_WINDOW] = f[IN_WINDOW] + size - gone if k[N_STEPS] > 0 else 0.0
    f[EVICTED] += gone


@kernel(inner=True)
def delta_without(delta: float, c: float, rows: F8_2D, leaver: int, last: int) -> float:
    """Delta of a sliding window after row `leaver` has left and one of weight c has come."""
    old_c = rows[leaver, 1]
    new_delta = delta - old_c + c
    # When a sum of very unequal weights has lost the small ones, sum it again.
    if old_c > 1e6 * new_delta:
        new_delta = c
        for q in range(leaver + 1, last):
            new_delta += rows[q, 1]
    return float(new_delta)


@kernel
def evict(row: int, p: float, bias: float, ring: RING, w: F8_2D, saved: F8) -> float:
    """Remove c lambda h of a retained row from v; return its norm, which is 0 if nothing changed.

    saved   (2 entries + 2,) or more; the old entries of w, for put_back
    """
    starts, indices, values, rows = ring
    averaged = w.shape[1] == 2
    end_of_w = w.shape[0] - 1
    g = rows[row, 1] * rows[row, 2]
    if g == 0.0:
        return 0.0
    pg = p * g
    norm = 0.0
    at = 0
    for q in range(np.uint64(starts[row]), np.uint64(starts[row + 1])):
        x, j = values[q], np.uint32(indices[q])
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
    return size_of(g, norm + bias * bias)


@kernel(inner=True)
def put_back(row: int, starts: I8, indices: I4, w: F8_2D, saved: F8) -> None:
    """Undo `evict`, to the bit."""
    averaged = w.shape[1] == 2
    end_of_w = w.shape[0] - 1
    at = 0
    for q in range(starts[row], starts[row + 1]):
        w[indices[q], 0] = saved[at]
        if averaged:
            w[indices[q], 1] = saved[at + 1]
        at += 2
    w[end_of_w, 0] = saved[at]
    if averaged:
        w[end_of_w, 1] = saved[at + 1]


@kernel(inner=True)
def resum(
    w: F8_2D, p: float, bias: float, ring: RING, first: int, last: int
) -> tuple[float, float]:
    """v = sum of c lambda h over the retained rows `first` to `last`.

    Removes the rounding errors of additions and evictions; z is adjusted to leave the average
    unchanged. Returns the sums of c and of |c lambda h|.
    """
    starts, indices, values, rows = ring
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
        size += size_of(g, norm + bias * bias)
    if averaged:
        for j in range(w.shape[0]):
            w[j, 1] -= p * w[j, 0]
    return delta, size


@kernel
def learn_rows(
    rows: ROWS, start: int, stop: int, out: RESULTS, w: F8_2D, f: F8, k: I8, ring: RING, saved: F8
) -> int:
    """Score and learn rows `start` to `stop`; return `stop`, or the row that the ring has no room
    for.

    Each row maximises the dual over its own lambda, once: (26a)-(26c) of the paper for R = |w|^2/2,
    as  min over tau of Q*(-tau) + tau m + s tau^2 / 2  with m = h.u / (rho Delta) after decay or
    eviction, s = c |h|^2 / (rho Delta); then u += c tau h. A row for which any number would not be
    finite is rejected and changes nothing. A row of weight 0 is scored and counted, and changes
    nothing else. Returns -1 - i, before any row is learned, if label i is invalid.

    rows, out                        see Batch and Outcome; the flags must be False initially
    w       (width, 1 or 2)          v, and z where averaged; the last row is the intercept's
    f, k    (N_FLOATS,), (N_INTS,)   see the constants at the top of this file
    ring                             see forgetting_windows.Ring; rows FIRST to LAST are retained
    saved   (2 entries + 2,)         scratch; entries of any retained row. Without a sliding window:
                                     (0,), or (n,) to receive tau of each row that counts, and then
                                     no row is retained
    Cost O(entries) per row, except for the rare operations of the module docstring.
    """
    indptr, indices, values, labels, weights = rows
    scores, losses, updated, rejected = out
    ring_starts, ring_indices, ring_values, ring_rows = ring
    n = labels.shape[0]
    binary = k[BINARY] != 0
    if start == 0:
        unknown = unknown_label(labels, binary)
        if unknown >= 0:
            return -1 - unknown

    scale, delta, conjugate = f[SCALE], f[DELTA], f[CONJUGATE]
    in_window, evicted_size = f[IN_WINDOW], f[EVICTED]
    avg_p, avg_k, avg_s = f[AVG_P], f[AVG_K], f[AVG_S]
    beta, kappa, bias = f[BETA], f[KAPPA], f[BIAS]
    numbers = loss_at(f, LOSS)
    samples, since_resum, n_steps = k[SAMPLES], k[SINCE_RESUM], k[N_STEPS]
    first, last = k[FIRST], k[LAST]
    length, retain, averaged = k[LENGTH], k[RETAIN], k[AVERAGED] != 0
    flush_below = 1e-3 if averaged else 1e-30
    fv, fz = served_factors(f, k)
    retains = length > 0 or saved.shape[0] == 0
    is_far = w.shape[0] * w.shape[1] > CACHED
    has_prior, odds = k[PRIOR] != 0, 0.0

    i = start
    while i < stop:
        begin, end = indptr[i], indptr[i + 1]
        if retains and (
            last == ring_rows.shape[0] or ring_starts[last] + end - begin > ring_values.shape[0]
        ):
            break
        if is_far and i + 2 < n:
            for p in range(indptr[i + 2], indptr[i + 3]):
                prefetch(w, indices[p])
        y, c = labels[i], weights[i]
        if binary and y == 0.0:
            y = -1.0

        # The score, by the served weights.
        dv, dz, hh = table.row_products(indices, values, begin, end, w, bias)
        score = fv * dv + fz * dz
        if has_prior:
            odds = prior_odds(f, POSITIVE)
            score += odds
        loss = loss_value(score, y, numbers)
        scores[i], losses[i] = score, loss
        if not (abs(score) < math.inf and loss < math.inf):
            scores[i] = losses[i] = np.nan
            rejected[i] = True
            i += 1
            continue
        if c == 0.0:
            samples += 1
            i += 1
            continue

        # The row that leaves a sliding window.
        new_delta = beta * delta + c
        leaver = last - length
        gone = 0.0
        if length > 0 and leaver >= first:
            new_delta = delta_without(delta, c, ring_rows, leaver, last)
            gone = evict(leaver, avg_p, bias, ring, w, saved)
            if gone > 0.0:
                dv, _, _ = table.row_products(indices, values, begin, end, w, bias)

        # The step.
        room = rho_delta(f, new_delta)
        new_scale = beta * scale
        m = new_scale * dv / room
        if has_prior:
            m += odds
        s = c * hh / room
        tau, cost = dual_step(m, s, y, numbers)
        # The sum of conjugates of a sliding window is computed from its rows on demand.
        new_conjugate = beta * conjugate + c * cost if length == 0 else 0.0
        is_due = new_scale < flush_below
        shrink, new_p = 1.0, avg_p
        if is_due:
            shrink, new_scale, new_p = new_scale, 1.0, 0.0
        new_fv = new_scale / room
        g = c * tau
        # The division delays the next row, and without decay the scale stays 1.
        if new_scale != 1.0:
            g /= new_scale
        pg = new_p * g
        new_k = fade = avg_k * kappa
        if averaged:
            if fade < 1e-100:
                new_p *= fade
                new_k = 1.0
            new_p += new_fv / new_k

        # Write nothing until all numbers are known to be finite.
        finite = (
            abs(m) < math.inf
            and s < math.inf
            and new_fv < math.inf
            and abs(g) < math.inf
            and abs(pg) < math.inf
            and abs(new_conjugate) < math.inf
            and new_delta < math.inf
            and new_p < math.inf
        )
        if finite and not (abs(g) < SMALL_STEP and abs(pg) < SMALL_STEP and hh < SMALL_NORM):
            finite = table.stays_finite(indices, values, begin, end, w, bias, g, pg, shrink)
        if finite and is_due and averaged:
            finite = table.flush_is_finite(w, avg_p)
        if not finite:
            if gone > 0.0:
                put_back(leaver, ring_starts, ring_indices, w, saved)
            scores[i] = losses[i] = np.nan
            rejected[i] = True
            i += 1
            continue

        # Write the result.
        if is_due:
            table.flush(w, avg_p, shrink)
        if averaged and new_k != fade:
            pg *= fade
            table.scale_average(w, fade)
        if g != 0.0:
            table.add_row(indices, values, begin, end, w, bias, g, pg)
            updated[i] = end > begin or bias != 0.0
        if retains:
            retain_row(
                indices, values, begin, end, y, c, tau,
                last, ring_starts, ring_indices, ring_values, ring_rows,
            )  # fmt: skip
            last += 1
            if last - first > retain:
                first += 1
        else:
            saved[i] = tau
        if has_prior:
            f[POSITIVE if y > 0.0 else POSITIVE + 1] += c
        samples += 1
        scale, delta, conjugate, avg_p, avg_k = new_scale, new_delta, new_conjugate, new_p, new_k
        if averaged:
            avg_s = kappa * avg_s + 1.0

        if length > 0:
            size = size_of(g, hh)
            n_steps += (1 if size > 0.0 else 0) - (1 if gone > 0.0 else 0)
            in_window = in_window + size - gone if n_steps > 0 else 0.0
            evicted_size += gone
            since_resum += 1
            if since_resum >= k[RESUM_EVERY] or (
                n_steps > 0 and evicted_size > OUTSIZED * in_window
            ):
                delta, in_window = resum(w, avg_p, bias, ring, max(first, last - length), last)
                since_resum = 0
                evicted_size = 0.0

        if averaged:
            fz = avg_k / avg_s
            fv = fz * avg_p
        else:
            fv = scale / rho_delta(f, delta)
        i += 1

    f[SCALE], f[DELTA], f[CONJUGATE] = scale, delta, conjugate
    f[IN_WINDOW], f[EVICTED] = in_window, evicted_size
    f[AVG_P], f[AVG_K], f[AVG_S] = avg_p, avg_k, avg_s
    k[SAMPLES], k[SINCE_RESUM], k[N_STEPS] = samples, since_resum, n_steps
    k[FIRST], k[LAST] = first, last
    return i


@kernel(inner=True)
def visit_row(
    row: int, delta: float, starts: I8, indices: I4, values: F8, rows: F8_2D, w: F8_2D, f: F8, k: I8
) -> None:
    """Maximise the dual over the lambda of a retained row, whose weight is now `delta`.

    The step of learn_rows for the problem without the row's own part: with a = delta / (rho Delta),
    m = h.w' - a |h|^2 lambda and s = a |h|^2; then u += delta (tau - lambda) h. The newest iterate
    is already part of the average, so its part is updated too; z compensates for the older iterates
    only. A visit for which any number would not be finite changes nothing.
    """
    y, old = rows[row, 0], rows[row, 2]
    begin, end = starts[row], starts[row + 1]
    bias, length, averaged = f[BIAS], k[LENGTH], k[AVERAGED] != 0
    numbers = loss_at(f, LOSS)
    dv, _, hh = table.row_products(indices, values, begin, end, w, bias)
    room = rho_delta(f, f[DELTA])
    fv = f[SCALE] / room
    s = delta * hh / room
    m = fv * dv - s * old
    if k[PRIOR] != 0:
        m += prior_odds(f, POSITIVE)
    tau, cost = dual_step(m, s, y, numbers)
    g = delta * (tau - old) / f[SCALE]
    pg = (f[AVG_P] - fv / f[AVG_K]) * g if averaged else 0.0
    conjugate = f[CONJUGATE]
    if length == 0:
        old_cost = loss_conjugate(old, y, numbers)
        conjugate += delta * (cost - old_cost)
    finite = (
        abs(m) < math.inf
        and s < math.inf
        and abs(g) < math.inf
        and abs(pg) < math.inf
        and abs(conjugate) < math.inf
    )
    if finite and not (abs(g) < SMALL_STEP and abs(pg) < SMALL_STEP and hh < SMALL_NORM):
        finite = table.stays_finite(indices, values, begin, end, w, bias, g, pg, 1.0)
    if g == 0.0 or not finite:
        return
    table.add_row(indices, values, begin, end, w, bias, g, pg)
    rows[row, 2] = tau
    f[CONJUGATE] = conjugate
    if length > 0:
        count_step(size_of(delta * tau, hh), size_of(delta * old, hh), f, k)


@kernel(inner=True)
def log_beta_of(f: RO_F8) -> float:
    """log(beta), exact near 1."""
    return math.log1p(f[BETA] - 1.0) if f[BETA] > 0.5 else math.log(f[BETA])


@kernel(inner=True)
def visited_row(visit: float, log_beta: float, rows: F8_2D, k: RO_I8) -> tuple[int, float]:
    """The retained row of a visit, and its weight now."""
    count = k[LAST] - k[FIRST]
    if k[LENGTH] > 0:
        count = min(count, k[LENGTH])
    age = min(int(visit * count), count - 1)
    row = k[LAST] - 1 - age
    delta = rows[row, 1]
    if age > 0 and log_beta < 0.0:
        delta *= math.exp(age * log_beta)
    return row, delta


@kernel(inner=True)
def replay_is_due(k: I8) -> bool:
    """Count a learned row; whether as many as EVERY were learned since the last replay."""
    if k[EVERY] == 0:
        return False
    k[SINCE_REPLAY] += 1
    if k[SINCE_REPLAY] < k[EVERY]:
        return False
    k[SINCE_REPLAY] = 0
    k[DUE] = 1
    return True


@kernel
def replay(visits: RO_F8, begin: int, end: int, ring: RING, w: F8_2D, f: F8, k: I8) -> None:
    """Visits `begin` to `end`, each O(entries) of its row.

    visits  (n,)  see replay.py; row n of N has weight beta^(N - n) times its own; a visit to
                  a row of weight 0 is skipped
    """
    starts, indices, values, rows = ring
    log_beta = log_beta_of(f)
    for i in range(begin, end):
        row, delta = visited_row(visits[i], log_beta, rows, k)
        if delta > 0.0:
            visit_row(row, delta, starts, indices, values, rows, w, f, k)
    k[VISITS] += end - begin


@kernel
def learn_and_replay(
    rows: ROWS, start: int, visits: RO_F8, out: RESULTS,
    w: F8_2D, f: F8, k: I8, ring: RING, saved: F8,
) -> int:  # fmt: skip
    """learn_rows, with STEPS visits after each learned row of a weight above 0.

    Also returns when `visits` has fewer than STEPS left, and after every EVERY such rows, with DUE
    set.
    """
    steps, at, i, stop = k[STEPS], 0, start, rows[3].shape[0]
    while i < stop and at + steps <= visits.shape[0]:
        last = k[LAST]
        done = learn_rows(rows, i, i + 1, out, w, f, k, ring, saved)
        if done <= i:
            return done
        i = done
        if k[LAST] > last:
            replay(visits, at, at + steps, ring, w, f, k)
            at += steps
            if replay_is_due(k):
                return i
    return i
