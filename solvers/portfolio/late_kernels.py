"""Kernel of the second rule of a portfolio, for rows whose labels come late.

The first rule (weighting_kernels.py) is fed with the members' scores just before a row is learned.
A member that follows the last labels looks better there than in what it served before they were
known. The second rule is fed with the scores as they were served. They are as old as the label is
late, so it is behind where the members still improve. With p_1 and p_2 the predictions of both

    p = p_1 + w (p_2 - p_1),  w = (b + 10 w_0 - 1.5 sqrt(a)) / (a + 10), within [0, 1],

where a and b are the curvature and the pull of online Newton steps on the loss of the mixture as
served (Hazan, Agarwal and Kale, "Logarithmic regret algorithms for online convex optimization",
2007), with g the slope of that loss towards p_2 and h its curvature in w:

    a <- 0.9997 a + c' h,  b <- 0.9997 b + c' (h w + g),  c' = min(c, 1);  both 0 at first.

So the second rule must have been better as served, by 1.5 standard errors. Before any loss as
served is known, w = w_0: 0.09 for classes, as the first rule is often too sure, 0 for numbers.

Classes: g = (q_2 - q_1) / q, h = g^2, with q the probability of the label by the mixture, for a w
of at most 0.9: one sure mistake of the second rule must not fix its share. Numbers, with
d = p_2 - p_1 and e = y - p in units of A, Huber's loss: g = d e / max(1, |e|),
h = d^2 / max(1, |e|), |d| at most 64.

The second rule's eta is divided by sqrt(1 + 3 D) for a row whose label came D rows of positive
weight late: the members' losses of neighbouring rows were caused by the same labels that were
missing. If fewer than 0.4 of the rows counted now had been counted when the row was served, its
scores say nothing of the members as they are now. Such a row moves no shares, and calibrations and
stack of the second rule learn it with the scores at learning time.

What a row that waits for its label keeps of it are K + 4 numbers: SAMPLES to HEAD below, then for
each member its score, for numbers with its base. NaN in SAMPLES marks a row that did not wait.
"""

import math

from dualstream.solvers.jit import F8, F8_2D, RO_F8, RO_F8_2D, RO_I8_2D, kernel
from dualstream.solvers.portfolio.stack_kernels import BASE
from dualstream.solvers.portfolio.weighting_kernels import (
    ABSOLUTE,
    COUNTED,
    ETA,
    MAX_ABSOLUTE,
    MAX_LOG_LOSS,
    ROW_LOSS,
    SCORE,
    base_of,
    classify_row,
    regress_row,
)
from dualstream.solvers.rows.scalar import clip, log1pexp, sigmoid

# Rows of positive weight before the row was served, a checksum of the members, and the scores of
# both rules.
SAMPLES, CHECKSUM, FIRST, SECOND = range(4)
HEAD = 4

PRECISION, PULL = range(2)
"""a and b, the evidence for the second rule."""

_FORGETTING, _SLOWNESS, _LEAST_AGE = 0.9997, 3.0, 0.4
_ROWS_BEFORE, _SHARE_BEFORE, _ERRORS_BETTER = 10.0, 0.09, 1.5
_MOST_SHARE, _MIN_PROBABILITY = 0.9, math.exp(-MAX_LOG_LOSS)


@kernel
def second_share(evidence: RO_F8, classes: bool) -> float:
    """w"""
    a, b = evidence[PRECISION], evidence[PULL]
    if classes:
        b += _ROWS_BEFORE * _SHARE_BEFORE
    return clip((b - _ERRORS_BETTER * math.sqrt(a)) / (a + _ROWS_BEFORE), 0.0, 1.0)


@kernel(inline=True)
def mixed_score(first: float, second: float, share: float, classes: bool) -> float:
    """The portfolio's score for the scores of both rules."""
    if not classes:
        return first + share * (second - first)
    p = (1.0 - share) * sigmoid(first) + share * sigmoid(second)
    return 0.0 if abs(p - 0.5) < 1e-12 else math.log(p / (1.0 - p))


@kernel(inline=True)
def add_evidence(
    first: float, second: float, y: float, c: float, unit: float, classes: bool, evidence: F8
) -> None:
    """Count the scores of both rules for a row with label y and weight c; unit: A, for numbers."""
    share = second_share(evidence, classes)
    if classes:
        share = min(share, _MOST_SHARE)
        q_first = sigmoid(y * first)
        apart = sigmoid(y * second) - q_first
        slope = apart / max(q_first + share * apart, _MIN_PROBABILITY)
        curvature = slope * slope
    elif unit > 0.0:
        apart = clip((second - first) / unit, -MAX_ABSOLUTE, MAX_ABSOLUTE)
        error = (y - first) / unit - share * apart
        slope = apart * clip(error, -1.0, 1.0)
        curvature = apart * apart / max(1.0, abs(error))
    else:
        slope = curvature = 0.0
    c = min(c, 1.0)
    evidence[PRECISION] = _FORGETTING * evidence[PRECISION] + c * curvature
    evidence[PULL] = _FORGETTING * evidence[PULL] + c * (curvature * share + slope)


@kernel
def mix_rules(share: float, classes: bool, first: RO_F8, second: RO_F8, out: F8) -> None:
    """out (n,): the portfolio's scores for those of both rules, share: w."""
    for i in range(first.shape[0]):
        out[i] = mixed_score(first[i], second[i], share, classes)


@kernel
def learn_late(
    scores: F8_2D,
    served: RO_F8_2D,
    labels: RO_F8,
    weights: RO_F8,
    classes: bool,
    eta: float,
    roles: RO_I8_2D,
    r: F8_2D,
    g: F8,
    recent: F8_2D,
    pairs: F8_2D,
    stack: F8_2D,
    scratch: F8_2D,
    row: F8,
    evidence: F8,
    out: F8_2D,
) -> None:
    """Count rows in the second rule and as evidence for it, after the first rule.

    scores   (n, K)      of the members just before each row was learned; overwritten
    served   (n, K + 4)  what each row kept, see above
    row      (N_OUT,)    scratch
    evidence (2,)        see PRECISION
    out      (n, N_OUT)  of the first rule; the score and the loss become those of the portfolio
    """
    for i in range(labels.shape[0]):
        y, c = labels[i], weights[i]
        is_late = served[i, SAMPLES] == served[i, SAMPLES]
        g[ETA] = eta
        if is_late:
            age = served[i, SAMPLES]
            has_learned = age > _LEAST_AGE * g[COUNTED]
            delay = max(0.0, g[COUNTED] - age)
            g[ETA] = eta / math.sqrt(1.0 + _SLOWNESS * delay) if has_learned else 0.0
            for j in range(roles.shape[0]):
                x = served[i, HEAD + j]
                # A member without a score now was reset, and its calibration restarts.
                if has_learned and x == x and scores[i, j] == scores[i, j]:
                    scores[i, j] = x - base_of(roles[j, BASE], g)
        if classes:
            classify_row(scores[i], y, c, roles, r, g, recent, pairs, stack, scratch, row)
        else:
            regress_row(scores[i], y, c, roles, r, g, recent, pairs, stack, scratch, row)
        one, two = out[i, SCORE], row[SCORE]
        mixed = mixed_score(one, two, second_share(evidence, classes), classes)
        out[i, SCORE] = mixed
        out[i, ROW_LOSS] = log1pexp(-y * mixed) if classes else 0.5 * (y - mixed) * (y - mixed)
        if c > 0.0:
            if is_late:
                one, two = served[i, FIRST], served[i, SECOND]
            unit = 0.0 if classes else g[ABSOLUTE]
            add_evidence(one, two, y, c, unit, classes, evidence)
