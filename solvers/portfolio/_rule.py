"""The rule that makes one prediction of many: calibration and exponential weights, row by row.

Classes. Member k with the raw score m_k (in [-40, 40]) says p_k = sigmoid(a_k m_k + b_k), the
portfolio p = sum_k v_k p_k; its score is the log odds of p. After the label
    q_k = max(p_k or 1 - p_k, 1e-4),  v_k <- v_k q_k^(eta c), normalised, then mixed with 1 / K
by `share` (Herbster and Warmuth, "Tracking the best expert", 1998), and a_k, b_k take a step of
online Newton on the log-loss with a diagonal A_k, B_k. As the mixture of probabilities is exact
under the log-loss for eta c <= 1 (Cesa-Bianchi and Lugosi, "Prediction, learning, and games",
2006, section 3.3), with c = 1
    sum -ln sum_k v_k q_k  <=  min_k sum -ln q_k + (1/eta) (ln K + T ln(1 / (1 - share)));
beyond eta c = 1 a heavy row counts as one of weight 1 / eta in v.

The prior says the log odds of the labels so far and is calibrated like the others. A member whose
score is not a number says 1/2 in this row, and its calibration begins anew.

In every kernel
    roles   (K, 2)  ROLE and IS_ACTIVE of each member
    r       (K, N_RULE), g (N_SHARED,)  the numbers of each member, and those of all, see below
    recent  (RECENT, 2 K)  loss and mistake of each member in row t at t mod RECENT
    pairs   (3 K, K)  for members a < b in rows a, a + K, a + 2 K: the rows that both were in, the
            sum of their differences in loss, the sum of the squares of these
    scratch (5, K)   of one row: see M to WRONG below
"""

import math

from solvers._jit import F8, F8_2D, RO_F8, RO_F8_2D, RO_I8_2D, Floats, Ints, f8, i8, kernel, void
from solvers._scalar import clip, sigmoid

ROLE, IS_ACTIVE = range(2)
MEMBER, PRIOR = range(2)

V, V_BEFORE, A, B, CURVATURE_A, CURVATURE_B, ROWS, LOSS, MISTAKES, RESETS = range(10)
N_RULE = 10
# Of all members together: weight of the rows of each class; rows; then what the specification says.
POSITIVE, NEGATIVE, COUNTED, ETA, SHARE = range(5)
N_SHARED = 5
RECENT = 1000
"""Rows in the rolling view."""
NOT_IN_IT = -1.0
"""Stands in `recent` where a member was not active."""

# Of one row and each member: clipped score, prediction, gain of its share, loss, mistake.
M, OWN, GAIN, COST, WRONG = range(5)
# What the rule gives for a row.
SCORE, ROW_LOSS = range(2)

_LARGEST_SCORE, _LARGEST_LOG_ODDS, _LEAST = 40.0, 12.0, 1e-4
MOST_LOSS = -math.log(_LEAST)
"""The largest loss that a member is charged for a row, in nats."""


@kernel(void(F8_2D, i8))
def start_calibration(r: Floats, j: int) -> None:
    """Member j is taken at its word again."""
    r[j, A], r[j, B] = 1.0, 0.0
    r[j, CURVATURE_A] = r[j, CURVATURE_B] = 10.0


@kernel(f8(F8, RO_I8_2D, RO_F8_2D, RO_F8, F8_2D))
def mixed(scores: Floats, roles: Ints, r: Floats, g: Floats, scratch: Floats) -> float:
    """p for the raw scores (K,) of one row; sets M (NaN where there is no score) and OWN."""
    p = 0.0
    for j in range(roles.shape[0]):
        m = scores[j]
        if roles[j, ROLE] == PRIOR:
            m = math.log((g[POSITIVE] + 0.5) / (g[NEGATIVE] + 0.5))
            scores[j] = m
        m = clip(m, -_LARGEST_SCORE, _LARGEST_SCORE)
        own = 0.5
        if m == m:
            z = clip(r[j, A] * m + r[j, B], -_LARGEST_LOG_ODDS, _LARGEST_LOG_ODDS)
            own = sigmoid(z)
        scratch[M, j], scratch[OWN, j] = m, own
        if roles[j, IS_ACTIVE] != 0:
            p += r[j, V] * own
    return 0.5 if abs(p - 0.5) < 1e-12 else p


@kernel(void(i8, f8, f8, F8_2D, F8_2D))
def calibrate(j: int, positive: float, c: float, r: Floats, scratch: Floats) -> None:
    """One step of a_k and b_k, or their start where the member had no score."""
    m, own = scratch[M, j], scratch[OWN, j]
    if m != m:
        start_calibration(r, j)
        r[j, RESETS] += 1.0
        return
    slope, curvature = c * (own - positive), c * (own * (1.0 - own) + 1e-3)
    r[j, CURVATURE_A] += curvature * m * m
    r[j, CURVATURE_B] += curvature
    step = slope / (1.0 + curvature * (m * m / r[j, CURVATURE_A] + 1.0 / r[j, CURVATURE_B]))
    r[j, A] = max(1e-3, r[j, A] - step * m / r[j, CURVATURE_A])
    r[j, B] -= step / r[j, CURVATURE_B]


@kernel(void(RO_I8_2D, F8_2D, F8_2D, F8_2D, F8, F8_2D))
def count_losses(
    roles: Ints, r: Floats, recent: Floats, pairs: Floats, g: Floats, scratch: Floats
) -> None:
    """Count COST and WRONG of a row for every active member."""
    n = roles.shape[0]
    at = int(g[COUNTED]) % recent.shape[0]
    g[COUNTED] += 1.0
    for j in range(n):
        recent[at, 2 * j] = recent[at, 2 * j + 1] = NOT_IN_IT
        if roles[j, IS_ACTIVE] == 0:
            continue
        cost = scratch[COST, j]
        r[j, ROWS] += 1.0
        r[j, LOSS] += cost
        r[j, MISTAKES] += scratch[WRONG, j]
        recent[at, 2 * j], recent[at, 2 * j + 1] = cost, scratch[WRONG, j]
        for i in range(j):
            if roles[i, IS_ACTIVE] != 0:
                apart = scratch[COST, i] - cost
                pairs[i, j] += 1.0
                pairs[n + i, j] += apart
                pairs[2 * n + i, j] += apart * apart


@kernel(void(RO_I8_2D, F8_2D, F8, F8_2D))
def share_out(roles: Ints, r: Floats, g: Floats, scratch: Floats) -> None:
    """v_k <- v_k GAIN, normalised and mixed, over the active members."""
    total, active = 0.0, 0
    for j in range(roles.shape[0]):
        if roles[j, IS_ACTIVE] != 0:
            r[j, V] *= scratch[GAIN, j]
            total += r[j, V]
            active += 1
    for j in range(roles.shape[0]):
        if roles[j, IS_ACTIVE] != 0:
            r[j, V] = (1.0 - g[SHARE]) * (r[j, V] / total) + g[SHARE] / active


@kernel(
    void(F8, f8, f8, RO_I8_2D, F8_2D, F8, F8_2D, F8_2D, F8_2D, F8)
)  # fmt: skip
def classify_row(
    scores: Floats,
    y: float,
    c: float,
    roles: Ints,
    r: Floats,
    g: Floats,
    recent: Floats,
    pairs: Floats,
    scratch: Floats,
    out: Floats,
) -> None:
    """Predict a row of raw scores (K,), then learn its label y (-1 or 1) with the weight c.

    A score that is NaN is of a member that begins anew; out (2,): SCORE, ROW_LOSS.
    """
    p = mixed(scores, roles, r, g, scratch)
    out[SCORE] = math.log(p / (1.0 - p))
    out[ROW_LOSS] = -math.log(p if y > 0.0 else 1.0 - p)
    if c == 0.0:
        return
    positive = 1.0 if y > 0.0 else 0.0
    exponent = min(g[ETA] * c, 1.0)
    for j in range(roles.shape[0]):
        own = scratch[OWN, j]
        if roles[j, IS_ACTIVE] != 0:
            calibrate(j, positive, c, r, scratch)
        q = max(own if y > 0.0 else 1.0 - own, _LEAST)
        scratch[GAIN, j] = math.sqrt(q) if exponent == 0.5 else math.exp(exponent * math.log(q))
        scratch[COST, j] = -math.log(q)
        scratch[WRONG, j] = 1.0 if (own >= 0.5) != (y > 0.0) else 0.0
    share_out(roles, r, g, scratch)
    count_losses(roles, r, recent, pairs, g, scratch)
    g[POSITIVE if y > 0.0 else NEGATIVE] += c


@kernel(
    void(F8_2D, RO_F8, RO_F8, RO_I8_2D, F8_2D, F8, F8_2D, F8_2D, F8_2D, F8_2D)
)  # fmt: skip
def classify_rows(
    scores: Floats,
    labels: Floats,
    weights: Floats,
    roles: Ints,
    r: Floats,
    g: Floats,
    recent: Floats,
    pairs: Floats,
    scratch: Floats,
    out: Floats,
) -> None:
    """The rule for rows whose raw scores (n, K) are all known; out (n, 2)."""
    for i in range(labels.shape[0]):
        classify_row(scores[i], labels[i], weights[i], roles, r, g, recent, pairs, scratch, out[i])


@kernel(void(i8, RO_F8, RO_F8, RO_F8, F8_2D, F8_2D))
def calibrate_rows(
    j: int, scores: Floats, labels: Floats, weights: Floats, r: Floats, scratch: Floats
) -> None:
    """Calibrate member j on rows that it scored (n,); they count for nothing else."""
    for i in range(scores.shape[0]):
        scratch[M, j] = clip(scores[i], -_LARGEST_SCORE, _LARGEST_SCORE)
        z = clip(r[j, A] * scratch[M, j] + r[j, B], -_LARGEST_LOG_ODDS, _LARGEST_LOG_ODDS)
        scratch[OWN, j] = sigmoid(z)
        calibrate(j, 1.0 if labels[i] > 0.0 else 0.0, weights[i], r, scratch)


@kernel(void(F8_2D, RO_I8_2D, RO_F8_2D, RO_F8, F8_2D, F8))
def mix_rows(
    scores: Floats, roles: Ints, r: Floats, g: Floats, scratch: Floats, out: Floats
) -> None:
    """out (n,): the portfolio's log odds for raw scores (n, K); nothing is learned."""
    for i in range(out.shape[0]):
        p = mixed(scores[i], roles, r, g, scratch)
        out[i] = math.log(p / (1.0 - p))
