"""ODCA and ODCAk: online difference-of-convex (DC) programming for the 0-1 loss.

Le Thi, Ho, "Online learning based on online DCA and application to online classification" (2020),
algorithms 1-6. In round t a row x with label y has a surrogate f = g - h of its 0-1 loss, chosen at
w_t such that f(w_t) is at least that loss; with z in dh(w_t),

    ODCAk (`one_step`)   w_{t+1} = Proj(w_t - eta_t (r - z)),  r in dg(w_t)
    ODCA  (`complete`)   w <- Proj(w - eta_t (r - z)), r in dg(w), from w_t on, until a step is at
                         most tol (|w| + 1) or `max_inner` of them are done

    eta_t = C / sqrt(t) (`sqrt_t`, the default), C / sqrt(T) (`sqrt_T`, T = `horizon`) or
            1 / (gamma t) (`strongly_convex`, theorem 1 under assumption 1d)

Proj (2.2) moves w to the nearest point of the ball |w| <= `radius`; without one it is w. Here t
counts all learned rows of a weight above 0. With m = y w_t.x,

    pil1     steps if m <= 0; tau* = tau1 and nu = 1 at a tie, else min(tau1, -m) and nu = 0;
             r - z = -y x / tau* where y w.x <= nu tau*, else 0                        (3.4), (3.8)
             A tie is |m| <= zero_tol |w| |x| (default 1e-12; 0 as in the paper): below it
             rounding alone would determine the length of the step eta / |m|.
    pil2     steps if -tau2 <= m < tau3 |x|; r - z = -y x / (tau3 |x|) where y w.x < tau3 |x|,
             else 0. With `relative_tau2` (the default, not in the paper) the lower bound is
             -tau2 |x|: with an absolute bound, long rows keep the sign of their first label.
    sigmoid  steps if tanh(u) < 1 - epsilon, u(w) = kappa y w.x / |x|; r and z as in (3.9), (3.10)

All steps are along y x and a projection scales w, so the inner iteration has two variables: w =
alpha w_t + beta y x. For a row of weight c, eta_t is multiplied by c.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dualstream.solvers.jit import F8, F8_2D, I8, kernel
from dualstream.solvers.online import plain_learner as plain
from dualstream.solvers.online.plain_learner import ROUNDS, SCALE, TINY_SQUARE, PlainLearner
from dualstream.solvers.online.table_learner import SAMPLES
from dualstream.solvers.protocols.learner import RESULTS, Outcome
from dualstream.solvers.rows.batch import ROWS, Batch
from dualstream.solvers.rows.scalar import fold

# Indices of a learner's scalars: first its state, then constants of its specification.
assert (SCALE, SAMPLES, ROUNDS) == (0, 0, 1)
NORM2, PEAK = 1, 2
C, TAU, TAU_LOW, KAPPA, EPSILON, ZERO_TOL, TOL, BIAS, RADIUS = range(3, 12)
N_FLOATS = 12
INNER_STEPS = 2
SURROGATE, COMPLETE, HORIZON, MAX_INNER, RESUM_EVERY, RELATIVE, STRONG = range(3, 10)
N_INTS = 10
PIL1, PIL2, SIGMOID = range(3)

# |w|^2 is recomputed when it has fallen by this factor since it was last exact.
_FALL = 1e-6
_MIN_SCALE = 1e-30
# exp of it is still finite.
_MAX_EXPONENT = 709.0


class DC(PlainLearner):
    """The learner of `algorithm: dc`; `spec` is resolved.

    The loss of an Outcome is the surrogate at the score, f(w_t): for pil1 max(1, -m / tau1) where m
    <= 0 (or a tie), else 0; for pil2 max(0, 1 - m / (tau3 |x|)), and 1 below the lower bound; for
    sigmoid 1 - tanh(u). For a row of zeros it is 1.
    """

    STATE_FLOATS = {"norm_squared": NORM2, "norm_squared_peak": PEAK}
    STATE_INTS = {"samples": SAMPLES, "rounds": ROUNDS, "inner_steps": INNER_STEPS}

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__(spec, N_FLOATS, N_INTS)
        floats, ints = self._floats, self._ints
        surrogate, inner, step = spec["surrogate"], spec["inner"], spec["step"]
        floats[BIAS] = self._features.bias
        floats[RADIUS] = spec.get("radius", math.inf)
        if surrogate["kind"] == "pil1":
            ints[SURROGATE] = PIL1
            floats[TAU], floats[ZERO_TOL] = surrogate["tau1"], surrogate["zero_tol"]
        elif surrogate["kind"] == "pil2":
            ints[SURROGATE], ints[RELATIVE] = PIL2, surrogate["relative_tau2"]
            floats[TAU], floats[TAU_LOW] = surrogate["tau3"], surrogate["tau2"]
        else:
            ints[SURROGATE] = SIGMOID
            floats[KAPPA], floats[EPSILON] = surrogate["kappa"], surrogate["epsilon"]
        if inner != "one_step":
            ints[COMPLETE], ints[MAX_INNER] = 1, inner["max_inner"]
            floats[TOL] = inner["tol"]
        if isinstance(step, Mapping) and step["kind"] == "strongly_convex":
            floats[C], ints[STRONG] = 1.0 / step["gamma"], 1
        else:
            floats[C] = spec["C"]
            ints[HORIZON] = step["horizon"] if step != "sqrt_t" else 0
        if "radius" in spec:
            self.STATE_FLOATS = {"scale": SCALE, **self.STATE_FLOATS}  # type: ignore[misc]
        ints[RESUM_EVERY] = max(1000, self._features.width)

    def _learn_rows(self, batch: Batch, out: Outcome) -> None:
        learn_rows(batch.arrays, out.arrays, self._v, self._w, self._floats, self._ints)


@kernel
def pil1(m: float, tie: float, norm: float, tau1: float) -> tuple[float, float, float, float]:
    """f(w_t), and the step of unit eta as top / bottom, taken while y w.x <= limit.

    (3.4), (3.8). top = 0: no step. tie is the |m| up to which m counts as 0.
    """
    if abs(m) <= tie:
        return 1.0, 1.0 if norm > 0.0 else 0.0, tau1, tau1
    if m > 0.0:
        return 0.0, 0.0, 1.0, 0.0
    return max(1.0, -m / tau1), 1.0, min(tau1, -m), 0.0


@kernel
def pil2(m: float, low: float, norm: float, tau3: float) -> tuple[float, float, float, float]:
    """Like pil1, for section 3.1.2: a step needs m >= low, and is taken while y w.x < limit."""
    limit = tau3 * norm
    if norm == 0.0 or m < low:
        return 1.0, 0.0, 1.0, 0.0
    if m >= limit:
        return 0.0, 0.0, 1.0, 0.0
    return 1.0 - m / limit, 1.0, limit, limit


@kernel
def sigmoid_surrogate(u: float, epsilon: float) -> tuple[float, float]:
    """1 - tanh(u), and sech^2(u), which is 0 if there is no step. Without overflow, for any u."""
    e = math.exp(-2.0 * abs(u))
    small = 2.0 * e / (1.0 + e)
    above = small if u >= 0.0 else 2.0 / (1.0 + e)
    tanh = 1.0 - small if u >= 0.0 else small - 1.0
    if tanh >= 1.0 - epsilon:
        return above, 0.0
    return above, 4.0 * e / ((1.0 + e) * (1.0 + e))


@kernel
def root(square: float) -> float:
    """The square root; 0 for a negative number or NaN left by rounding."""
    return math.sqrt(square) if square > 0.0 else 0.0


@kernel
def length(alpha: float, beta: float, ww: float, m: float, x2: float) -> float:
    """|alpha w_t + beta y x|, with ww = |w_t|^2 and m = y w_t.x."""
    return root(alpha * alpha * ww + beta * (2.0 * alpha * m + beta * x2))


@kernel
def move(
    alpha: float, beta: float, step: float, ww: float, m: float, x2: float, norm: float,
    radius: float
) -> tuple[float, float, float]:  # fmt: skip
    """alpha and beta after a step and the projection (2.2), and how far w has moved."""
    new = beta + step
    size = length(alpha, new, ww, m, x2) if radius < math.inf else 0.0
    if not size > radius:
        return alpha, new, abs(step) * norm
    shrink = radius / size
    shrunk, new = shrink * alpha, shrink * new
    return shrunk, new, length(shrunk - alpha, new - beta, ww, m, x2)


@kernel(inner=True)
def descend_pil(
    m: float,
    x2: float,
    norm: float,
    ww: float,
    step: float,
    limit: float,
    closed: bool,
    tol: float,
    max_inner: int,
    radius: float,
) -> tuple[float, float, int]:
    """alpha, beta, and the number of iterations: `step` each while y w.x < limit (<= if closed).

    The caller knows that the first step is taken. Algorithms 1 and 3 of the paper.
    """
    alpha, beta = 1.0, 0.0
    for inner in range(1, max_inner + 1):
        margin = alpha * m + beta * x2
        is_due = inner == 1 or margin < limit or (closed and margin == limit)
        size = length(alpha, beta, ww, m, x2)
        alpha, beta, far = move(alpha, beta, step if is_due else 0.0, ww, m, x2, norm, radius)
        if not far > tol * (size + 1.0):
            return alpha, beta, inner
    return alpha, beta, max_inner


@kernel
def sigmoid_slope(u: float, d: float, gap: float, sech2: float) -> float:
    """(z - r) / (kappa_t y x) at u(w) = u + d, for z and r as in (3.9) and (3.10); gap = delta - u.

    With q(v) = exp(-2 v): 4 q(u) expm1(-2 d) + sech^2(u) before delta, 4 (Q(u + d) - Q(u)) after
    it, Q = q^2 (q + 2) / (q + 1)^2, which is q - sech^2 / 4: that form has no cancellation for u <
    0.
    """
    if d == 0.0:
        return sech2
    if d < gap or u < 0.0:
        # exp(-2 u) in two factors: expm1(-2 d) is small where exp(-2 u) overflows.
        half = math.exp(min(-u, _MAX_EXPONENT))
        slope = 4.0 * half * (half * math.expm1(min(-2.0 * d, _MAX_EXPONENT))) + sech2
        if d < gap:
            return slope
        e = math.exp(-2.0 * abs(u + d))
        return slope - 4.0 * e / ((1.0 + e) * (1.0 + e))
    q, r = math.exp(-2.0 * u), math.exp(-2.0 * (u + d))
    before = q * q * (q + 2.0) / ((q + 1.0) * (q + 1.0))
    return 4.0 * (r * r * (r + 2.0) / ((r + 1.0) * (r + 1.0)) - before)


@kernel(inner=True)
def descend_sigmoid(
    m: float,
    x2: float,
    norm: float,
    ww: float,
    u: float,
    kappa: float,
    sech2: float,
    step: float,
    tol: float,
    max_inner: int,
    radius: float,
) -> tuple[float, float, int]:
    """alpha, beta, and the number of iterations, of algorithm 5: each adds step times
    sigmoid_slope.

    u(w) = alpha u + kappa beta x2; `kappa` is kappa_t. It ends at an iterate that is not finite.
    """
    e = math.exp(-2.0 * abs(u))
    # delta - u = -log(m_t) / 2, m_t = (2 a + 1) / (a + 1)^2 with a = exp(2 u).
    if u > 0.0:
        gap = u - 0.5 * math.log((2.0 + e) / ((1.0 + e) * (1.0 + e)))
    else:
        gap = -0.5 * math.log1p(-(e / (1.0 + e)) * (e / (1.0 + e)))
    alpha, beta = 1.0, 0.0
    for inner in range(1, max_inner + 1):
        apart = kappa * beta * x2 + (alpha - 1.0) * u
        moved = step * sigmoid_slope(u, apart, gap, sech2)
        size = length(alpha, beta, ww, m, x2)
        alpha, beta, far = move(alpha, beta, moved, ww, m, x2, norm, radius)
        if not far > tol * (size + 1.0):
            return alpha, beta, inner
    return alpha, beta, max_inner


@kernel
def learn_rows(rows: ROWS, out: RESULTS, v: F8, table: F8_2D, f: F8, k: I8) -> None:
    """Score and learn all rows; labels are -1, 0 or 1.

    A row for which any number would not be finite is rejected and changes nothing. A row of weight
    0 is scored and counted, and changes nothing else.

    rows, out    see Batch and Outcome; its flags must be False initially
    v       (width,)      the weights over `scale`, which is 1 without a radius; the last is the
                          intercept's
    table   (width, 1)    the same memory
    f, k    (N_FLOATS,), (N_INTS,)   see the constants at the top of this file
    Cost O(entries) per row for one_step, O(entries + iterations) for complete; |w|^2 is recomputed
    every RESUM_EVERY >= width rows, or when it has fallen below _FALL of its peak.
    """
    indptr, indices, values, labels, weights = rows
    scores, losses, updated, rejected = out
    n = labels.shape[0]
    scale, ww, peak, radius = f[SCALE], f[NORM2], f[PEAK], f[RADIUS]
    samples, rounds, inner_steps = k[SAMPLES], k[ROUNDS], k[INNER_STEPS]
    c_step, tau, kappa, bias = f[C], f[TAU], f[KAPPA], f[BIAS]
    surrogate, is_complete, horizon = k[SURROGATE], k[COMPLETE] != 0, k[HORIZON]
    is_relative, is_strong = k[RELATIVE] != 0, k[STRONG] != 0
    tie_tol = f[ZERO_TOL] * math.sqrt(ww)
    until_resum = k[RESUM_EVERY] - rounds % k[RESUM_EVERY]

    for i in range(n):
        begin, end = indptr[i], indptr[i + 1]
        y, c = labels[i], weights[i]
        if y == 0.0:
            y = -1.0

        dot, x2 = plain.row_products(indices, values, begin, end, v, table, bias)
        score = scale * dot
        norm = plain.norm_of(values, begin, end, bias, x2)
        m = y * score

        # The surrogate at w_t, and the first step as eta top / bottom.
        u, limit = 0.0, 0.0
        if surrogate == SIGMOID:
            bottom = norm
            u = kappa * (m / norm) if norm > 0.0 else 0.0
            loss, top = sigmoid_surrogate(u, f[EPSILON])
            if norm == 0.0:
                top = 0.0
        elif surrogate == PIL1:
            loss, top, bottom, limit = pil1(m, tie_tol * norm, norm, tau)
        else:
            low = -f[TAU_LOW] * norm if is_relative else -f[TAU_LOW]
            loss, top, bottom, limit = pil2(m, low, norm, tau)
        finite = abs(score) < math.inf and loss < math.inf

        # The step.
        alpha, beta, inner = 1.0, 0.0, 0
        if top != 0.0 and c > 0.0 and finite:
            t = float(horizon if horizon > 0 else rounds + 1)
            eta = c * (c_step / (t if is_strong else math.sqrt(t)))
            step = eta * kappa / bottom if surrogate == SIGMOID else eta / bottom
            if not is_complete:
                alpha, beta, _ = move(1.0, 0.0, step * top, ww, m, x2, norm, radius)
            else:
                # A row whose square underflows is treated as one of length 1.
                unit, s2, size = 1.0, x2, norm
                if x2 < TINY_SQUARE:
                    unit, s2, size = norm, 1.0, 1.0
                if surrogate == SIGMOID:
                    alpha, beta, inner = descend_sigmoid(
                        m / unit, s2, size, ww, u, kappa / norm * unit, top, step * unit,
                        f[TOL], k[MAX_INNER], radius,
                    )  # fmt: skip
                else:
                    alpha, beta, inner = descend_pil(
                        m / unit, s2, size, ww, step * unit, limit / unit, surrogate == PIL1,
                        f[TOL], k[MAX_INNER], radius,
                    )  # fmt: skip
                beta /= unit
            long = beta * norm
            new_ww = alpha * alpha * ww + 2.0 * alpha * beta * m + long * long
            if new_ww < 0.0:
                new_ww = 0.0

            # Write nothing until all numbers are known to be finite.
            new_scale = scale * alpha
            is_small = new_scale < _MIN_SCALE
            g = y * beta / (1.0 if is_small else new_scale)
            finite = abs(g) < math.inf and new_ww < math.inf
            finite = finite and plain.stays_finite(indices, values, begin, end, v, bias, g, x2)
            if finite:
                inner_steps += inner
            if finite and g != 0.0:
                if is_small:
                    fold(v, new_scale)
                plain.add_row(indices, values, begin, end, v, bias, g)
                updated[i] = True
                scale, ww = (1.0 if is_small else new_scale), new_ww
                peak = max(peak, ww)
                if ww < _FALL * peak:
                    ww = peak = fold(v, scale)
                    scale = 1.0
                tie_tol = f[ZERO_TOL] * math.sqrt(ww)
        if not finite:
            scores[i] = losses[i] = np.nan
            rejected[i] = True
            continue
        scores[i], losses[i] = score, loss
        samples += 1
        if c == 0.0:
            continue
        rounds += 1
        until_resum -= 1
        if until_resum == 0:
            until_resum = k[RESUM_EVERY]
            if ww != 0.0:
                ww = peak = fold(v, scale)
                scale = 1.0
                tie_tol = f[ZERO_TOL] * math.sqrt(ww)

    f[SCALE], f[NORM2], f[PEAK] = scale, ww, peak
    k[SAMPLES], k[ROUNDS], k[INNER_STEPS] = samples, rounds, inner_steps
