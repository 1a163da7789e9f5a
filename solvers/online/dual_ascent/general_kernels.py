"""O-DCA kernels for elastic net and entropy, whose weights are not a multiple of u.

State and steps are those of kernels.py; here w = grad R*(w') is computed coordinate by coordinate:

    elastic net   R(w) = |w|^2 / 2 + threshold |w|_1,  w_j = w'_j moved towards 0 by `threshold`
    entropy       R(w) = sum_j w_j log w_j on the simplex,  w = softmax(w')

so the dual step (26a) of the paper has no closed form. It is the root of an increasing function of
one variable, found by a bracketed Newton method (see `best_dual`).

Elastic net costs O(entries) for each function value of that search (a few). Entropy costs O(width)
more per row and per visit. The average (27) is stored explicitly, at O(width) per row: coordinates
move even if no row touches them.

`w`, `f`, `k` and the ring are those of kernels.py, except that the second column of w is the
average.
"""

import math

import numpy as np

from dualstream.solvers.jit import F8, F8_2D, I8, RO_F8, RO_I4, RO_I8, kernel
from dualstream.solvers.losses.loss_kernels import (
    logistic_root,
    loss_at,
    loss_conjugate,
    loss_value,
)
from dualstream.solvers.online.dual_ascent import kernels as l2
from dualstream.solvers.online.forgetting_windows import RING, retain_row
from dualstream.solvers.protocols.learner import RESULTS
from dualstream.solvers.rows.batch import ROWS
from dualstream.solvers.rows.scalar import clip, sigmoid, soft, unknown_label

_FLUSH_BELOW = 1e-30
# Beyond these the sigmoid is 0 or 1 to the last bit.
_LOWEST, _HIGHEST = -746.0, 40.0
# A root is accepted if its function is 0 up to rounding, or if the step is this small relative to
# it: the error of the objective is of second order in it.
_ROUNDING, _SMALL_MOVE = 4e-16, 1e-13


@kernel
def dashed_factor(f: RO_F8) -> float:
    """The factor of v in w' = u / (rho Delta)."""
    room = l2.rho_delta(f, f[l2.DELTA])
    return f[l2.SCALE] / room if room > 0.0 else 0.0


@kernel(inner=True)
def softmax_sums(
    indices: RO_I4, begin: int, end: int, w: F8_2D, bias: float, factor: float
) -> tuple[float, float]:
    """The largest factor v_j, and the sum of exp(factor v_j - largest), over coordinates outside a
    row.

    Rows are sorted by index. Returns -infinity and 0 if the row has every coordinate. A row of
    begin = end and bias 1 has only the intercept. Cost O(width).
    """
    stop = w.shape[0] - 1
    top = -math.inf
    at = begin
    for j in range(stop):
        if at < end and indices[at] == j:
            at += 1
        else:
            top = max(top, factor * w[j, 0])
    total = 0.0
    at = begin
    for j in range(stop):
        if at < end and indices[at] == j:
            at += 1
        else:
            total += math.exp(factor * w[j, 0] - top)
    return top, total


@kernel
def shift_and_sum(w: F8_2D, f: RO_F8, k: RO_I8, factor: float) -> tuple[float, float]:
    """largest and sum with softmax(w')_j = exp(factor v_j - largest) / sum; only for entropy."""
    if k[l2.ENTROPY] == 0:
        return 0.0, 1.0
    stop = w.shape[0] if f[l2.BIAS] != 0.0 else w.shape[0] - 1
    top = -math.inf
    for j in range(stop):
        top = max(top, factor * w[j, 0])
    total = 0.0
    for j in range(stop):
        total += math.exp(factor * w[j, 0] - top)
    return top, total


@kernel
def weight_of(x: float, f: RO_F8, k: RO_I8, top: float, total: float) -> float:
    """The weight of a coordinate with w' = x."""
    if k[l2.ENTROPY] != 0:
        return math.exp(x - top) / total
    return soft(x, f[l2.THRESHOLD])


@kernel
def served_numbers(w: F8_2D, f: RO_F8, k: RO_I8) -> tuple[float, float, float]:
    """factor, top and total of `weight_of` for all served weights; unused if they are averages."""
    if k[l2.AVERAGED] != 0 and f[l2.AVG_S] > 0.0:
        return 0.0, 0.0, 1.0
    factor = dashed_factor(f)
    top, total = shift_and_sum(w, f, k, factor)
    return factor, top, total


@kernel
def served_rows(
    rows: F8_2D, f: RO_F8, k: RO_I8, factor: float, top: float, total: float, out: F8
) -> None:
    """out (n,) = the served weights of the first n of these rows of the table."""
    if k[l2.AVERAGED] != 0 and f[l2.AVG_S] > 0.0:
        for j in range(out.shape[0]):
            out[j] = rows[j, 1]
        return
    for j in range(out.shape[0]):
        out[j] = weight_of(factor * rows[j, 0], f, k, top, total)


@kernel
def served_weights(w: F8_2D, f: RO_F8, k: RO_I8, out: F8) -> None:
    """out (width,) = the served weights, the intercept's last (0 without an intercept)."""
    stop = w.shape[0] if f[l2.BIAS] != 0.0 else w.shape[0] - 1
    out[w.shape[0] - 1] = 0.0
    served_rows(w, f, k, *served_numbers(w, f, k), out[:stop])


@kernel(inner=True)
def score_of(
    indices: RO_I4,
    values: RO_F8,
    begin: int,
    end: int,
    w: F8_2D,
    f: RO_F8,
    k: RO_I8,
    factor: float,
    top: float,
    total: float,
) -> float:
    """h.w by the served weights of a row."""
    at = w.shape[0] - 1
    bias = f[l2.BIAS]
    score = 0.0
    if k[l2.AVERAGED] != 0 and f[l2.AVG_S] > 0.0:
        for p in range(begin, end):
            score += values[p] * w[indices[p], 1]
        return float(score + bias * w[at, 1])
    for p in range(begin, end):
        score += values[p] * weight_of(factor * w[indices[p], 0], f, k, top, total)
    if bias != 0.0:
        score += bias * weight_of(factor * w[at, 0], f, k, top, total)
    return score


@kernel
def score_rows(
    indptr: RO_I8, indices: RO_I4, values: RO_F8, scores: F8, w: F8_2D, f: RO_F8, k: RO_I8
) -> None:
    """Scores (n,) by the served weights, equal to the bit to those of learn_rows."""
    factor = dashed_factor(f)
    top, total = shift_and_sum(w, f, k, factor)
    for i in range(scores.shape[0]):
        scores[i] = score_of(indices, values, indptr[i], indptr[i + 1], w, f, k, factor, top, total)


@kernel
def response(
    indices: RO_I4,
    values: RO_F8,
    begin: int,
    end: int,
    w: F8_2D,
    f: RO_F8,
    k: RO_I8,
    factor: float,
    step: float,
    rest_top: float,
    rest: float,
) -> tuple[float, float]:
    """h.grad R*(w' + step h) with w' = factor v, and its derivative by `step`.

    rest_top, rest   for entropy: softmax_sums of the coordinates outside the row
    """
    at, bias = w.shape[0] - 1, f[l2.BIAS]
    if k[l2.ENTROPY] == 0:
        product = slope = 0.0
        for p in range(begin, end):
            h = values[p]
            t = soft(factor * w[indices[p], 0] + step * h, f[l2.THRESHOLD])
            product += h * t
            if t != 0.0:
                slope += h * h
        if bias != 0.0:
            t = soft(factor * w[at, 0] + step * bias, f[l2.THRESHOLD])
            product += bias * t
            if t != 0.0:
                slope += bias * bias
        return product, slope
    top = rest_top
    for p in range(begin, end):
        top = max(top, factor * w[indices[p], 0] + step * values[p])
    if bias != 0.0:
        top = max(top, factor * w[at, 0] + step * bias)
    total = rest * math.exp(rest_top - top) if rest > 0.0 else 0.0
    first = second = 0.0
    for p in range(begin, end):
        h = values[p]
        share = math.exp(factor * w[indices[p], 0] + step * h - top)
        total += share
        first += share * h
        second += share * h * h
    if bias != 0.0:
        share = math.exp(factor * w[at, 0] + step * bias - top)
        total += share
        first += share * bias
        second += share * bias * bias
    mean = first / total
    return mean, max(0.0, second / total - mean * mean)


@kernel
def best_dual(
    indices: RO_I4,
    values: RO_F8,
    begin: int,
    end: int,
    w: F8_2D,
    f: RO_F8,
    k: RO_I8,
    factor: float,
    a: float,
    old: float,
    hh: float,
    y: float,
    rest_top: float,
    rest: float,
) -> tuple[float, float]:
    """tau = argmin of  Q*(-tau; y) + (1/a) R*(f_N + a tau h),  f_N = w' - a old h, and Q*(-tau; y).

    Its derivative, dQ*(-tau) + phi(tau) with phi(tau) = h.grad R*(f_N + a tau h), increases. For
    the logistic loss the root is sought in u = logit(y tau), as in `logistic_root`. For the
    others 0 is tried first, so it is returned if it is a minimum; then the side on which the
    derivative decreases, up to the end of the domain. phi rises by at most a |h|^2 per unit of tau,
    which bounds the root from the other side. If several tau are minima (phi is constant), one of
    them is returned. Newton's method, bisecting if a step leaves the bracket or is not half of the
    one before (Press et al., Numerical Recipes, rtsafe). NaN if phi is not finite.
    """
    logistic, margin, eps, gamma, b_lo, b_hi = loss_at(f, l2.LOSS)
    sgn, t = (y, 1.0) if margin != 0.0 else (1.0, y)
    at_0, slope = response(indices, values, begin, end, w, f, k, factor, -a * old, rest_top, rest)
    at_0 *= sgn
    steepest = a * hh
    if not (abs(at_0) < math.inf and steepest < math.inf):
        return math.nan, math.nan

    if logistic != 0.0:
        at_1, _ = response(
            indices, values, begin, end, w, f, k, factor, a * (sgn - old), rest_top, rest
        )
        at_1 *= sgn
        if not abs(at_1) < math.inf:
            return math.nan, math.nan
        lo = max(-at_1, -math.log1p(steepest) - max(at_0, 0.0) - 1.0)
        lo, hi = clip(lo, _LOWEST, _HIGHEST), clip(-at_0, _LOWEST, _HIGHEST)
        u, b = logistic_root(at_0, a * slope)
        if not lo < u < hi:
            u = lo + 0.5 * (hi - lo)
        b = sigmoid(u)
        last = hi - lo
        for _ in range(200):
            if not lo < hi:
                break
            dual, slope = response(
                indices, values, begin, end, w, f, k, factor, a * (sgn * b - old), rest_top, rest
            )
            residual = u + sgn * dual
            if residual > 0.0:
                hi = u
            else:
                lo = u
            if abs(residual) <= _ROUNDING * (abs(u) + abs(dual)):
                break
            move = -residual / (1.0 + a * slope * b * (1.0 - b))
            if not (lo < u + move < hi and 2.0 * abs(move) <= abs(last)):
                move = lo + 0.5 * (hi - lo) - u
            last = move
            u += move
            b = sigmoid(u)
            if abs(move) <= _SMALL_MOVE * abs(u):
                break
        if u < 0.0:
            return sgn * b, math.log1p(-b) + b * u
        return sgn * b, math.log(b) - (1.0 - b) * u

    pull = soft(t - at_0, eps)
    side = 1.0 if pull > 0.0 else -1.0
    most = b_hi if pull > 0.0 else -b_lo
    if gamma > 0.0:
        most = min(most, abs(pull) / gamma)
    if pull == 0.0 or most == 0.0:
        return 0.0, 0.0
    # From here on b = side * x, and residual = gamma x + eps - side (t - phi): below 0 at x = 0.
    x = most
    dual, slope_there = response(
        indices, values, begin, end, w, f, k, factor,
        a * (sgn * side * most - old), rest_top, rest,
    )  # fmt: skip
    residual = gamma * most + eps - side * (t - sgn * dual)
    if not abs(residual) < math.inf:
        return math.nan, math.nan
    if residual > 0.0:
        lo, hi = 0.0, most
        if steepest + gamma > 0.0:
            lo = min(abs(pull) / (steepest + gamma) * (1.0 - 1e-15), most)
        x = lo
        if a * slope + gamma > 0.0:
            x = min(abs(pull) / (a * slope + gamma), most)
        if not lo <= x < hi:
            x = lo + 0.5 * (hi - lo)
        last = hi - lo
        for _ in range(200):
            dual, slope = response(
                indices, values, begin, end, w, f, k, factor,
                a * (sgn * side * x - old), rest_top, rest,
            )  # fmt: skip
            residual = gamma * x + eps - side * (t - sgn * dual)
            if residual > 0.0:
                hi = x
            else:
                lo = x
            if abs(residual) <= _ROUNDING * (gamma * x + eps + abs(t) + abs(dual)):
                break
            move = -residual / (a * slope + gamma)
            if not (lo <= x + move <= hi and 2.0 * abs(move) <= abs(last)):
                move = lo + 0.5 * (hi - lo) - x
            last = move
            x += move
            if abs(move) <= _SMALL_MOVE * x:
                break
    b = side * x
    return sgn * b, eps * x + 0.5 * gamma * x * x - t * b


@kernel
def square_of(values: RO_F8, begin: int, end: int, bias: float) -> float:
    """h.h"""
    total = 0.0
    for p in range(begin, end):
        total += values[p] * values[p]
    return total + bias * bias


@kernel(inner=True)
def stays_finite(
    indices: RO_I4,
    values: RO_F8,
    begin: int,
    end: int,
    w: F8_2D,
    bias: float,
    g: float,
    shrink: float,
    factor: float,
) -> bool:
    """Whether shrink v + g h, and factor times it, are finite at the entries of the row."""
    at = w.shape[0] - 1
    reach = max(1.0, factor)
    finite = reach * abs(w[at, 0] * shrink + g * bias) < math.inf
    for p in range(begin, end):
        finite = finite and reach * abs(w[indices[p], 0] * shrink + g * values[p]) < math.inf
    return bool(finite)


@kernel
def add_row(
    indices: RO_I4, values: RO_F8, begin: int, end: int, w: F8_2D, bias: float, g: float
) -> None:
    """v += g h."""
    for p in range(begin, end):
        w[indices[p], 0] += g * values[p]
    w[w.shape[0] - 1, 0] += g * bias


@kernel
def keep(indices: RO_I4, begin: int, end: int, w: F8_2D, saved: F8, back: bool) -> None:
    """Save v at the entries of a row, or restore it if `back`."""
    at = w.shape[0] - 1
    if back:
        for p in range(begin, end):
            w[indices[p], 0] = saved[p - begin]
        w[at, 0] = saved[end - begin]
        return
    for p in range(begin, end):
        saved[p - begin] = w[indices[p], 0]
    saved[end - begin] = w[at, 0]


@kernel(inner=True)
def resum(w: F8_2D, f: F8, k: I8, ring: RING) -> None:
    """Recompute v, Delta and the size of all steps from the rows of a sliding window."""
    starts, indices, values, rows = ring
    first = max(k[l2.FIRST], k[l2.LAST] - k[l2.LENGTH])
    for j in range(w.shape[0]):
        w[j, 0] = 0.0
    delta = size = 0.0
    for i in range(first, k[l2.LAST]):
        delta += rows[i, 1]
        g = rows[i, 1] * rows[i, 2]
        add_row(indices, values, starts[i], starts[i + 1], w, f[l2.BIAS], g)
        size += l2.size_of(g, square_of(values, starts[i], starts[i + 1], f[l2.BIAS]))
    f[l2.DELTA], f[l2.IN_WINDOW], f[l2.EVICTED] = delta, size, 0.0
    k[l2.SINCE_RESUM] = 0


@kernel(inner=True)
def add_iterate(w: F8_2D, f: F8, k: I8, kept: float, share: float) -> None:
    """average = kept average + share w_N. O(width); a coordinate that would not be finite is
    unchanged."""
    factor = dashed_factor(f)
    top, total = shift_and_sum(w, f, k, factor)
    stop = w.shape[0] if f[l2.BIAS] != 0.0 else w.shape[0] - 1
    for j in range(stop):
        new = kept * w[j, 1] + share * weight_of(factor * w[j, 0], f, k, top, total)
        if abs(new) < math.inf:
            w[j, 1] = new


@kernel
def rest_of(
    indices: RO_I4, begin: int, end: int, w: F8_2D, f: RO_F8, k: RO_I8, factor: float
) -> tuple[float, float]:
    """The sums over coordinates outside a row that `response` needs."""
    if k[l2.ENTROPY] == 0:
        return 0.0, 0.0
    return softmax_sums(indices, begin, end, w, f[l2.BIAS], factor)


@kernel(inner=True)
def visit_rows(visits: RO_F8, begin: int, end: int, ring: RING, w: F8_2D, f: F8, k: I8) -> None:
    """Maximise the dual over the lambda of one retained row after the other; see kernels.replay.

    A visit for which any number would not be finite changes nothing. The average is not updated.
    """
    starts, indices, values, rows = ring
    bias, length, log_beta = f[l2.BIAS], k[l2.LENGTH], l2.log_beta_of(f)
    for i in range(begin, end):
        row, delta = l2.visited_row(visits[i], log_beta, rows, k)
        if not delta > 0.0:
            continue
        p, q = starts[row], starts[row + 1]
        y, old = rows[row, 0], rows[row, 2]
        room = l2.rho_delta(f, f[l2.DELTA])
        factor, a = f[l2.SCALE] / room, delta / room
        hh = square_of(values, p, q, bias)
        rest_top, rest = rest_of(indices, p, q, w, f, k, factor)
        tau, cost = best_dual(indices, values, p, q, w, f, k, factor, a, old, hh, y, rest_top, rest)
        g = delta * (tau - old) / f[l2.SCALE]
        conjugate = f[l2.CONJUGATE]
        if length == 0:
            old_cost = loss_conjugate(
                old, y, loss_at(f, l2.LOSS),
            )  # fmt: skip
            conjugate += delta * (cost - old_cost)
        finite = abs(g) < math.inf and abs(conjugate) < math.inf
        if g == 0.0 or not (
            finite and stays_finite(indices, values, p, q, w, bias, g, 1.0, factor)
        ):
            continue
        add_row(indices, values, p, q, w, bias, g)
        rows[row, 2] = tau
        f[l2.CONJUGATE] = conjugate
        if length > 0:
            l2.count_step(l2.size_of(delta * tau, hh), l2.size_of(delta * old, hh), f, k)
    k[l2.VISITS] += end - begin


@kernel
def replay(visits: RO_F8, begin: int, end: int, ring: RING, w: F8_2D, f: F8, k: I8) -> None:
    """Visits `begin` to `end`; then the newest iterate's part of the average is updated."""
    averaged = k[l2.AVERAGED] != 0 and f[l2.AVG_S] > 0.0
    if averaged:
        add_iterate(w, f, k, 1.0, -1.0 / f[l2.AVG_S])
    visit_rows(visits, begin, end, ring, w, f, k)
    if averaged:
        add_iterate(w, f, k, 1.0, 1.0 / f[l2.AVG_S])


@kernel
def learn_and_replay(
    rows: ROWS, start: int, visits: RO_F8, out: RESULTS,
    w: F8_2D, f: F8, k: I8, ring: RING, saved: F8,
) -> int:  # fmt: skip
    """Like learn_and_replay of kernels.py, and like learn_rows if STEPS and EVERY are 0."""
    indptr, indices, values, labels, weights = rows
    scores, losses, updated, rejected = out
    ring_starts, ring_indices, ring_values, ring_rows = ring
    n = labels.shape[0]
    binary = k[l2.BINARY] != 0
    if start == 0:
        unknown = unknown_label(labels, binary)
        if unknown >= 0:
            return -1 - unknown
    beta, bias, length, steps = f[l2.BETA], f[l2.BIAS], k[l2.LENGTH], k[l2.STEPS]
    numbers = loss_at(f, l2.LOSS)
    at_visit = 0
    # For entropy the served weights' shift and sum; only a learned row changes them.
    served_factor = dashed_factor(f)
    top, total = shift_and_sum(w, f, k, served_factor)

    i = start
    while i < n and at_visit + steps <= visits.shape[0]:
        begin, end = indptr[i], indptr[i + 1]
        last = k[l2.LAST]
        if last == ring_rows.shape[0] or ring_starts[last] + end - begin > ring_values.shape[0]:
            break
        y, c = labels[i], weights[i]
        if binary and y == 0.0:
            y = -1.0
        score = score_of(indices, values, begin, end, w, f, k, served_factor, top, total)
        loss = loss_value(score, y, numbers)
        scores[i], losses[i] = score, loss
        if not (abs(score) < math.inf and loss < math.inf):
            scores[i] = losses[i] = np.nan
            rejected[i] = True
            i += 1
            continue
        if c == 0.0:
            k[l2.SAMPLES] += 1
            i += 1
            continue

        # The row that leaves a sliding window.
        new_delta = beta * f[l2.DELTA] + c
        leaver = last - length
        gone = 0.0
        if length > 0 and leaver >= k[l2.FIRST]:
            new_delta = l2.delta_without(f[l2.DELTA], c, ring_rows, leaver, last)
            p, q = ring_starts[leaver], ring_starts[leaver + 1]
            g = ring_rows[leaver, 1] * ring_rows[leaver, 2]
            gone = l2.size_of(g, square_of(ring_values, p, q, bias))
            if gone > 0.0:
                keep(ring_indices, p, q, w, saved, False)
                add_row(ring_indices, ring_values, p, q, w, bias, -g)

        # The step.
        room = l2.rho_delta(f, new_delta)
        new_scale = beta * f[l2.SCALE]
        factor, a = new_scale / room, c / room
        hh = square_of(values, begin, end, bias)
        rest_top, rest = rest_of(indices, begin, end, w, f, k, factor)
        tau, cost = best_dual(
            indices, values, begin, end, w, f, k, factor, a, 0.0, hh, y, rest_top, rest
        )
        new_conjugate = beta * f[l2.CONJUGATE] + c * cost if length == 0 else 0.0
        shrink = 1.0
        if new_scale < _FLUSH_BELOW:
            shrink, new_scale = new_scale, 1.0
        g = c * tau / new_scale
        finite = (
            factor < math.inf
            and new_scale / room < math.inf
            and abs(g) < math.inf
            and abs(new_conjugate) < math.inf
            and new_delta < math.inf
            and stays_finite(indices, values, begin, end, w, bias, g, shrink, new_scale / room)
        )
        if not finite:
            if gone > 0.0:
                keep(ring_indices, ring_starts[leaver], ring_starts[leaver + 1], w, saved, True)
            scores[i] = losses[i] = np.nan
            rejected[i] = True
            i += 1
            continue

        # Write the result.
        if shrink != 1.0:
            for j in range(w.shape[0]):
                w[j, 0] *= shrink
        if g != 0.0:
            add_row(indices, values, begin, end, w, bias, g)
            updated[i] = end > begin or bias != 0.0
        retain_row(
            indices, values, begin, end, y, c, tau,
            last, ring_starts, ring_indices, ring_values, ring_rows,
        )  # fmt: skip
        k[l2.LAST] += 1
        if k[l2.LAST] - k[l2.FIRST] > k[l2.RETAIN]:
            k[l2.FIRST] += 1
        k[l2.SAMPLES] += 1
        f[l2.SCALE], f[l2.DELTA], f[l2.CONJUGATE] = new_scale, new_delta, new_conjugate
        if length > 0:
            l2.count_step(l2.size_of(g, hh), gone, f, k)
            k[l2.SINCE_RESUM] += 1
            if k[l2.SINCE_RESUM] >= k[l2.RESUM_EVERY] or (
                k[l2.N_STEPS] > 0 and f[l2.EVICTED] > l2.OUTSIZED * f[l2.IN_WINDOW]
            ):
                resum(w, f, k, ring)
        if steps > 0:
            visit_rows(visits, at_visit, at_visit + steps, ring, w, f, k)
            at_visit += steps
        if k[l2.AVERAGED] != 0:
            f[l2.AVG_S] = f[l2.KAPPA] * f[l2.AVG_S] + 1.0
            add_iterate(w, f, k, 1.0 - 1.0 / f[l2.AVG_S], 1.0 / f[l2.AVG_S])
        served_factor = dashed_factor(f)
        if k[l2.AVERAGED] == 0:
            top, total = shift_and_sum(w, f, k, served_factor)
        i += 1
        if l2.replay_is_due(k):
            break
    return i


@kernel
def add_regularizer(
    rows: F8_2D, served: RO_F8, f: RO_F8, k: RO_I8, factor: float, top: float, total: float, out: F8
) -> None:
    """out (3,) += R(served), R*(w') and R(served) + R*(w') - served.w' of rows of the table.

    Each is a sum of terms >= 0. For entropy R*(w') is not a sum: it is top + log(total).
    served  (n,)  weights of these rows; w' = factor v
    top, total    output of shift_and_sum
    Elastic net: with t = soft(w') and e = w' - t, |e| <= threshold, the last one has the terms (w -
    t)^2 / 2 and threshold |w| - w e. Entropy: the relative entropy of w to p = softmax(w'), in the
    terms w log(w / p) - w + p.
    """
    primal, dual, excess = out[0], out[1], out[2]
    if k[l2.ENTROPY] == 0:
        eps = f[l2.THRESHOLD]
        for j in range(served.shape[0]):
            x, dashed = served[j], factor * rows[j, 0]
            t = soft(dashed, eps)
            primal += 0.5 * x * x + eps * abs(x)
            dual += 0.5 * t * t
            excess += 0.5 * (x - t) * (x - t) + max(0.0, eps * abs(x) - x * clip(dashed, -eps, eps))
        out[0], out[1], out[2] = primal, dual, excess
        return
    log_total = math.log(total)
    for j in range(served.shape[0]):
        x, log_p = served[j], factor * rows[j, 0] - top - log_total
        if x > 0.0:
            primal += x * math.log(x)
            excess += max(0.0, x * (math.log(x) - log_p) - x + math.exp(log_p))
        else:
            excess += math.exp(log_p)
    out[0], out[1], out[2] = primal, top + log_total, excess
