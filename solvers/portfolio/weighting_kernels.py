"""Kernels of the weighting rule: exponential weights with a fixed share, row by row.

Shares v_k are multiplied by exp(-eta times the loss), normalised, and then mixed with 1 / K by
`share` (Herbster and Warmuth, "Tracking the best expert", 1998).

Classes. Member k with raw score m_k (in [-40, 40]) predicts p_k = sigmoid(a_k m_k + b_k), the
portfolio p = sum_k v_k p_k; its score is the log odds of p. After the label
    q_k = max(p_k or 1 - p_k, 1e-4),  v_k <- v_k q_k^(eta c), normalised and mixed,
and a_k, b_k take a step of online Newton on the log-loss with a diagonal A_k, B_k. As the log-loss
of a mixture of probabilities is exact for eta c <= 1 (Cesa-Bianchi and Lugosi, "Prediction,
learning, and games", 2006, section 3.3), with c = 1
    sum -ln sum_k v_k q_k  <=  min_k sum -ln q_k + (1/eta) (ln K + T ln(1 / (1 - share)));
beyond eta c = 1 a heavy row counts as one of weight 1 / eta in v. The score of the prior is the log
odds of the labels so far, calibrated like the others. A member whose score is NaN predicts 1/2 in
this row, and its calibration restarts.

Numbers. Members correct a base: the mean mu of the targets or the last target. A member that is a
model corrects no base and learns y itself. Errors are in units of S, the running root mean square
of the portfolio's own errors, so y -> a y + b gives p -> a p + b from row 2 on. With lo and hi the
least and the largest target so far, e a twentieth of their distance, and f_k the member's score:
    z_k = base_k + f_k, within [lo - e, hi + e] (mu if f_k is NaN)
    p = mu + sum_k v_k (z_k - mu)
    y' = y clipped to within 50 S of p, which replaces y from here on
    l_k = min(2 |y' - z_k| / A, 64),  v_k <- v_k exp(-eta c l_k), normalised and mixed
    member k learns y' - base_k
    S^2 += max(1/n, 0.01) ((y' - p)^2 - S^2), n rows before this one;  A likewise with |y' - p|;
    then mu, last, lo, hi.
Row 1 is predicted as 0, and sets only mu, last, lo and hi. While S = 0 no share changes. By the
definition of v,
    sum -(1/eta) ln sum_k v_k e^(-eta c l_k) <= min_k sum c l_k + (1/eta)(ln K + T ln 1/(1-share));
the absolute loss is convex: where none is at its limit, 2 |y' - p| / A <= sum v_k l_k, which
exceeds the left-hand term by at most eta d^2 / 8 for c = 1 and losses in a range d (the same book,
section 2.2, Hoeffding's inequality).

In every kernel
    roles   (K, 2)  ROLE and BASE of each member
    r       (N_RULE, K), g (N_SHARED,)  the numbers of each member, and the shared ones, see below;
            of numbers, g has ABSOLUTE as one more
    recent  (RECENT, 2 K)  in row t mod RECENT the losses of all members in row t, then mistakes
    pairs   (3 K, K)  for members a < b in rows b, b + K, b + 2 K: the number of rows that both
            learned, the sum of the differences of their losses, the sum of the squares of these
    stack   (K + 4, K + 1)  see stack_kernels.py; no rows without a stack
    scratch (6, K)   of one row: see M to TARGET below
    out     (4,)     see SCORE to LEARNS below
"""

import math

import numpy as np

from dualstream.solvers.jit import F8, F8_2D, RO_F8, RO_I8_2D, kernel
from dualstream.solvers.portfolio.stack_kernels import (
    BASE,
    MEMBER,
    PRIOR,
    ROLE,
    learn_class,
    learn_number,
    set_class_inputs,
    set_number_inputs,
    stack_among,
)
from dualstream.solvers.rows.scalar import clip, exp_of, log_of, sigmoid_of

MEAN_BASE, LAST_BASE, NO_BASE = range(3)

# IS_ACTIVE: 1.0 for members that learn and are served, else 0.0.
V, V_BEFORE, IS_ACTIVE, A, B, CURVATURE_A, CURVATURE_B, ROWS, LOSS, MISTAKES, RESETS = range(11)
N_RULE = 11
# Shared numbers: two of the specification, rows counted, then for classes the weight of the rows of
# each class, and for numbers those of the module docstring.
ETA, SHARE, COUNTED, POSITIVE, NEGATIVE = range(5)
ROWS_SEEN, WEIGHT_SEEN, MEAN, LAST, LOW, HIGH, SQUARE = range(3, 10)
N_SHARED = 10
ABSOLUTE = 10
"""A last shared number, A, only for numbers."""
RECENT = 1000
"""Rows in the rolling view."""
NOT_ACTIVE = -1.0
"""Marks in `recent` a member that was not active."""

# For one row and each member: score, prediction, gain of its share, loss, mistake, target.
M, OWN, GAIN, COST, WRONG, TARGET = range(6)
N_SCRATCH = 6
# Outputs for a row: S (infinite while it is 0), and whether members learn the row.
SCORE, ROW_LOSS, SCALE, LEARNS = range(4)
N_OUT = 4
WAS_RESET = 2.0
"""Value of LEARNS if some member's step was not finite, after the row was counted."""

MAX_SCORE, MAX_LOG_ODDS, _MIN_PROBABILITY = 40.0, 12.0, 1e-4
_REACH, _BEYOND, _RATE = 50.0, 0.05, 0.01
_RAISED = 2.0**200
MAX_LOG_LOSS = -math.log(_MIN_PROBABILITY)
"""The largest loss charged for a row: for classes in nats ..."""
MAX_ABSOLUTE = 64.0
"""... for numbers in A / 2."""
_LEAST_UNIT = 1e-300


@kernel
def start_calibration(r: F8_2D, j: int) -> None:
    """Restart the calibration of member j: a = 1, b = 0."""
    r[A, j], r[B, j] = 1.0, 0.0
    r[CURVATURE_A, j] = r[CURVATURE_B, j] = 10.0


@kernel(inline=True, apart=True)
def calibrated(scores: F8, a: F8, b: F8, m: F8, predictions: F8) -> None:
    """m: the scores, clipped; own: sigmoid(a m + b), 1/2 without a score."""
    for j in range(scores.shape[0]):
        x = max(min(scores[j], MAX_SCORE), -MAX_SCORE)
        is_known = scores[j] == scores[j]
        z = max(min(a[j] * x + b[j], MAX_LOG_ODDS), -MAX_LOG_ODDS)
        m[j] = x if is_known else np.nan
        predictions[j] = sigmoid_of(z) if is_known else 0.5


@kernel(inline=True)
def mixed_class(
    scores: F8, roles: RO_I8_2D, r: F8_2D, g: RO_F8, stack: F8_2D, scratch: F8_2D
) -> float:
    """p for the raw scores (K,) of one row; sets M (NaN without a score) and OWN."""
    for j in range(roles.shape[0]):
        if roles[j, ROLE] == PRIOR:
            scores[j] = math.log((g[POSITIVE] + 0.5) / (g[NEGATIVE] + 0.5))
    calibrated(scores, r[A], r[B], scratch[M], scratch[OWN])
    if stack.shape[0] > 0:
        set_class_inputs(
            stack_among(roles), scratch[M], r[IS_ACTIVE], r[A], r[B], scratch[OWN], stack
        )  # fmt: skip
    p = 0.0
    for j in range(roles.shape[0]):
        p += r[IS_ACTIVE, j] * r[V, j] * scratch[OWN, j]
    return 0.5 if abs(p - 0.5) < 1e-12 else p


@kernel(inline=True, inner=False)
def base_of(base: int, g: RO_F8) -> float:
    """The base that a member's score is added to."""
    if base == NO_BASE:
        return 0.0
    return float(g[LAST] if base == LAST_BASE else g[MEAN])


@kernel(inline=True)
def mixed_number(
    scores: F8, roles: RO_I8_2D, r: F8_2D, g: RO_F8, stack: F8_2D, scratch: F8_2D
) -> float:
    """p for the raw scores (K,) of one row; sets M (NaN without a score) and OWN."""
    if g[ROWS_SEEN] == 0.0:
        for j in range(roles.shape[0]):
            scratch[M, j], scratch[OWN, j] = scores[j], 0.0
        return 0.0
    beyond = _BEYOND * (g[HIGH] - g[LOW])
    low, high = g[LOW] - beyond, g[HIGH] + beyond
    apart = 0.0
    for j in range(roles.shape[0]):
        m = scores[j] if roles[j, ROLE] == MEMBER else 0.0
        prediction = g[MEAN]
        if abs(m) < np.inf:
            prediction = clip(base_of(roles[j, BASE], g) + m, low, high)
        else:
            m = np.nan
        scratch[M, j], scratch[OWN, j] = m, prediction
    if stack.shape[0] > 0:
        j, scale = stack_among(roles), math.sqrt(g[SQUARE]) if g[SQUARE] > 0.0 else 1.0
        prediction = set_number_inputs(
            j, g[MEAN], scale, scratch[M], r[IS_ACTIVE], scratch[OWN], stack
        )
        scratch[M, j], scratch[OWN, j] = 0.0, clip(prediction, low, high)
    for j in range(roles.shape[0]):
        apart += r[IS_ACTIVE, j] * r[V, j] * (scratch[OWN, j] - g[MEAN])
    return float(g[MEAN] + apart)


@kernel(inline=True, apart=True)
def calibrate(
    positive: float,
    c: float,
    m: F8,
    predictions: F8,
    is_active: F8,
    a: F8,
    b: F8,
    curvature_a: F8,
    curvature_b: F8,
) -> None:
    """One step of a_k and b_k of every active member that has a score."""
    for j in range(m.shape[0]):
        x = m[j] if m[j] == m[j] else 0.0
        share = c * is_active[j]
        slope = share * (predictions[j] - positive)
        curvature = share * (predictions[j] * (1.0 - predictions[j]) + 1e-3)
        ca, cb = curvature_a[j] + curvature * x * x, curvature_b[j] + curvature
        step = slope / (1.0 + curvature * (x * x / ca + 1.0 / cb))
        a[j] = max(1e-3, a[j] - step * x / ca)
        b[j] -= step / cb
        curvature_a[j], curvature_b[j] = ca, cb


@kernel(inline=True)
def begin_calibrations(m: RO_F8, r: F8_2D) -> None:
    """Restart the calibration of members without a score in this row."""
    for j in range(m.shape[0]):
        if m[j] != m[j]:
            start_calibration(r, j)
            r[RESETS, j] += 1.0


@kernel(inline=True, apart=True, inner=False)
def share_out(v: F8, gain: F8, is_active: F8, share: float) -> None:
    """v_k <- v_k gain_k, normalised and mixed, over the active members."""
    total = active = 0.0
    for j in range(v.shape[0]):
        total += is_active[j] * v[j] * gain[j]
        active += is_active[j]
    keep, mix = (1.0 - share) / total, share / active
    if keep == np.inf:
        # With `share` 0, a share can become subnormal, and then be the only one with a gain.
        total = 0.0
        for j in range(v.shape[0]):
            gain[j] *= _RAISED
            total += is_active[j] * v[j] * gain[j]
        keep = (1.0 - share) / total
    for j in range(v.shape[0]):
        v[j] = keep * v[j] * gain[j] + mix if is_active[j] > 0.0 else v[j]


@kernel(inline=True, apart=True)
def add_losses(
    cost: F8,
    wrong: F8,
    is_active: F8,
    rows: F8,
    losses: F8,
    mistakes: F8,
    recent_losses: F8,
    recent_mistakes: F8,
) -> None:
    """Count a row for every active member."""
    for j in range(cost.shape[0]):
        rows[j] += is_active[j]
        losses[j] += is_active[j] * cost[j]
        mistakes[j] += is_active[j] * wrong[j]
        recent_losses[j] = cost[j] if is_active[j] > 0.0 else NOT_ACTIVE
        recent_mistakes[j] = wrong[j] if is_active[j] > 0.0 else NOT_ACTIVE


@kernel(inline=True, apart=True)
def add_pairs(j: int, cost: F8, is_active: F8, rows: F8, totals: F8, squares: F8) -> None:
    """Count a row for the pairs of member j and every earlier one."""
    for i in range(j):
        both = is_active[i] * is_active[j]
        apart = both * (cost[i] - cost[j])
        rows[i] += both
        totals[i] += apart
        squares[i] += apart * apart


@kernel(inline=True)
def count_losses(r: F8_2D, recent: F8_2D, pairs: F8_2D, g: F8, scratch: F8_2D) -> None:
    """Count COST and WRONG of a row for every active member."""
    n = r.shape[1]
    line = recent[int(g[COUNTED]) % recent.shape[0]]
    g[COUNTED] += 1.0
    add_losses(
        scratch[COST], scratch[WRONG], r[IS_ACTIVE], r[ROWS], r[LOSS], r[MISTAKES],
        line[:n], line[n:],
    )  # fmt: skip
    for j in range(1, n):
        add_pairs(j, scratch[COST], r[IS_ACTIVE], pairs[j], pairs[n + j], pairs[2 * n + j])


@kernel(inline=True, apart=True)
def charge(
    y: float,
    positive: float,
    exponent: float,
    predictions: F8,
    gain: F8,
    cost: F8,
    wrong: F8,
    target: F8,
) -> None:
    """Set the loss of each member's prediction."""
    for j in range(predictions.shape[0]):
        q = max(predictions[j] if y > 0.0 else 1.0 - predictions[j], _MIN_PROBABILITY)
        cost[j] = -log_of(q)
        gain[j] = math.sqrt(q)
        wrong[j] = abs((1.0 if predictions[j] >= 0.5 else 0.0) - positive)
        target[j] = y
    if exponent != 0.5:
        for j in range(predictions.shape[0]):
            gain[j] = exp_of(-exponent * cost[j])


@kernel(inline=True)
def classify_row(
    scores: F8,
    y: float,
    c: float,
    roles: RO_I8_2D,
    r: F8_2D,
    g: F8,
    recent: F8_2D,
    pairs: F8_2D,
    stack: F8_2D,
    scratch: F8_2D,
    out: F8,
) -> None:
    """Predict a row of raw scores (K,), then learn its label y (-1 or 1) with weight c.

    A NaN score belongs to a member that was reset.
    """
    p = mixed_class(scores, roles, r, g, stack, scratch)
    out[SCORE] = math.log(p / (1.0 - p))
    out[ROW_LOSS] = -math.log(p if y > 0.0 else 1.0 - p)
    out[SCALE], out[LEARNS] = 1.0, 1.0
    if c == 0.0:
        return
    positive = 1.0 if y > 0.0 else 0.0
    calibrate(
        positive, c, scratch[M], scratch[OWN], r[IS_ACTIVE], r[A], r[B], r[CURVATURE_A],
        r[CURVATURE_B],
    )  # fmt: skip
    begin_calibrations(scratch[M], r)
    charge(
        y, positive, min(g[ETA] * c, 1.0), scratch[OWN], scratch[GAIN], scratch[COST],
        scratch[WRONG], scratch[TARGET],
    )  # fmt: skip
    share_out(r[V], scratch[GAIN], r[IS_ACTIVE], g[SHARE])
    count_losses(r, recent, pairs, g, scratch)
    if stack.shape[0] > 0 and r[IS_ACTIVE, stack_among(roles)] > 0.0:
        learn_class(y, c, stack)
    g[POSITIVE if y > 0.0 else NEGATIVE] += c


@kernel(inline=True)
def regress_row(
    scores: F8,
    y: float,
    c: float,
    roles: RO_I8_2D,
    r: F8_2D,
    g: F8,
    recent: F8_2D,
    pairs: F8_2D,
    stack: F8_2D,
    scratch: F8_2D,
    out: F8,
) -> None:
    """Predict a row of raw scores (K,), then learn its target y with weight c."""
    p = mixed_number(scores, roles, r, g, stack, scratch)
    out[SCORE], out[ROW_LOSS] = p, 0.5 * (y - p) * (y - p)
    scale = math.sqrt(g[SQUARE])
    out[SCALE] = scale if scale > 0.0 else np.inf
    out[LEARNS] = 1.0 if g[ROWS_SEEN] > 0.0 else 0.0
    if c == 0.0:
        return
    near = clip(y, p - _REACH * scale, p + _REACH * scale) if scale > 0.0 else y
    least = MAX_ABSOLUTE
    # A can vanish before S does.
    unit = max(0.5 * g[ABSOLUTE], _LEAST_UNIT)
    for j in range(roles.shape[0]):
        if scratch[M, j] != scratch[M, j]:
            r[RESETS, j] += 1.0
        scratch[TARGET, j] = near - base_of(roles[j, BASE], g)
        if scale > 0.0:
            scratch[COST, j] = min(abs((near - scratch[OWN, j]) / unit), MAX_ABSOLUTE)
            scratch[WRONG, j] = 0.0
            if r[IS_ACTIVE, j] > 0.0 and r[V, j] > 0.0:
                least = min(least, scratch[COST, j])
    if scale > 0.0:
        for j in range(roles.shape[0]):
            behind = max(0.0, scratch[COST, j] - least)
            scratch[GAIN, j] = math.exp(-g[ETA] * c * behind)
        share_out(r[V], scratch[GAIN], r[IS_ACTIVE], g[SHARE])
        count_losses(r, recent, pairs, g, scratch)
        if stack.shape[0] > 0 and r[IS_ACTIVE, stack_among(roles)] > 0.0:
            learn_number((near - g[MEAN]) / scale, c, stack)
    n = g[ROWS_SEEN]
    if n > 0.0:
        g[SQUARE] += max(1.0 / n, _RATE) * ((near - p) * (near - p) - g[SQUARE])
        g[ABSOLUTE] += max(1.0 / n, _RATE) * (abs(near - p) - g[ABSOLUTE])
    else:
        g[LOW] = g[HIGH] = g[MEAN] = near
    g[WEIGHT_SEEN] += c
    g[MEAN] += c / g[WEIGHT_SEEN] * (near - g[MEAN])
    g[LAST], g[LOW], g[HIGH] = near, min(g[LOW], near), max(g[HIGH], near)
    g[ROWS_SEEN] = n + 1.0


@kernel
def rule_rows(
    scores: F8_2D,
    labels: RO_F8,
    weights: RO_F8,
    classes: bool,
    roles: RO_I8_2D,
    r: F8_2D,
    g: F8,
    recent: F8_2D,
    pairs: F8_2D,
    stack: F8_2D,
    scratch: F8_2D,
    out: F8_2D,
) -> None:
    """The rule for rows whose raw scores (n, K) are all known; out (n, N_OUT)."""
    for i in range(labels.shape[0]):
        y, c = labels[i], weights[i]
        if classes:
            classify_row(scores[i], y, c, roles, r, g, recent, pairs, stack, scratch, out[i])
        else:
            regress_row(scores[i], y, c, roles, r, g, recent, pairs, stack, scratch, out[i])


@kernel
def calibrate_rows(scores: F8, labels: RO_F8, weights: RO_F8, r: F8_2D, scratch: F8_2D) -> None:
    """Calibrate one member, r (N_RULE, 1), on rows that it scored (n,); nothing else is counted."""
    for i in range(scores.shape[0]):
        calibrated(scores[i : i + 1], r[A], r[B], scratch[M], scratch[OWN])
        calibrate(
            1.0 if labels[i] > 0.0 else 0.0, weights[i], scratch[M], scratch[OWN],
            r[IS_ACTIVE], r[A], r[B], r[CURVATURE_A], r[CURVATURE_B],
        )  # fmt: skip
        begin_calibrations(scratch[M], r)


@kernel
def mix_rows(
    scores: F8_2D,
    classes: bool,
    roles: RO_I8_2D,
    r: F8_2D,
    g: RO_F8,
    stack: F8_2D,
    scratch: F8_2D,
    out: F8,
) -> None:
    """out (n,): the portfolio's score for raw scores (n, K); nothing is learned."""
    for i in range(out.shape[0]):
        if classes:
            p = mixed_class(scores[i], roles, r, g, stack, scratch)
            out[i] = math.log(p / (1.0 - p))
        else:
            out[i] = mixed_number(scores[i], roles, r, g, stack, scratch)
