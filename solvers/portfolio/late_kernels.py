"""Kernel of the second rule of a portfolio, for rows whose labels come late.

The first rule (weighting_kernels.py) is fed with the members' scores just before a row is learned.
A member that follows the last labels looks better there than in what it served before they were
known. The second rule is fed with the scores as they were served. They are as old as the label is
late, so it is behind where the members still improve. With p_1 and p_2 the predictions of both

    p = (1 - w) p_1 + w p_2,  w = sigmoid(0.2 eta (L - 20)),
    L <- 0.9995 L + min(c, 1) (loss of p_1 - loss of p_2),  both as served;  L = 0 at first,

the loss in the units of the rule. The second rule's eta is divided by sqrt(1 + D / 3) for a row
whose label came D rows of positive weight late: the members' losses of neighbouring rows were
caused by the same labels that were missing.

What a row that waits for its label keeps of it are K + 4 numbers: SAMPLES to HEAD below, then for
each member its score, for numbers with its base. NaN in SAMPLES marks a row that did not wait.
"""

import math

import numpy as np

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
from dualstream.solvers.rows.scalar import log1pexp, sigmoid

# Rows of positive weight before the row was served, a checksum of the members, and the scores of
# both rules.
SAMPLES, CHECKSUM, FIRST, SECOND = range(4)
HEAD = 4

_FORGETTING, _RATE, _PATIENCE = 0.9995, 0.2, 3.0
_HANDICAP = 20.0
"""The second rule must be better before it counts, also after long without a difference."""


@kernel
def second_share(eta: float, lead: float) -> float:
    """w, for the eta of the specification."""
    return sigmoid(_RATE * eta * (lead - _HANDICAP))


@kernel(inline=True)
def mixed_score(first: float, second: float, share: float, classes: bool) -> float:
    """The portfolio's score for the scores of both rules."""
    if not classes:
        return first + share * (second - first)
    p = (1.0 - share) * sigmoid(first) + share * sigmoid(second)
    return 0.0 if abs(p - 0.5) < 1e-12 else math.log(p / (1.0 - p))


@kernel(inline=True)
def loss_of(score: float, y: float, unit: float, classes: bool) -> float:
    """The loss of a rule's score in the units of its members' losses; unit: A / 2, for numbers."""
    if classes:
        return min(log1pexp(-y * score), MAX_LOG_LOSS)
    return min(abs(y - score) / unit, MAX_ABSOLUTE) if unit > 0.0 else 0.0


@kernel
def mix_rules(eta: float, lead: float, classes: bool, first: RO_F8, second: RO_F8, out: F8) -> None:
    """out (n,): the portfolio's scores for those of both rules."""
    share = second_share(eta, lead)
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
    lead: F8,
    out: F8_2D,
) -> None:
    """Count rows in the second rule and in L, after the first rule.

    scores   (n, K)      of the members just before each row was learned; overwritten
    served   (n, K + 4)  what each row kept, see above
    row      (N_OUT,)    scratch
    lead     (1,)        L
    out      (n, N_OUT)  of the first rule; the score and the loss become those of the portfolio
    """
    for i in range(labels.shape[0]):
        y, c = labels[i], weights[i]
        is_late = served[i, SAMPLES] == served[i, SAMPLES]
        delay = 0.0
        if is_late:
            delay = max(0.0, g[COUNTED] - served[i, SAMPLES])
            for j in range(roles.shape[0]):
                x = served[i, HEAD + j]
                # A member without a score now was reset, and its calibration restarts.
                if x == x and scores[i, j] == scores[i, j]:
                    scores[i, j] = x - base_of(roles[j, BASE], g)
        g[ETA] = eta / math.sqrt(1.0 + delay / _PATIENCE)
        if classes:
            classify_row(scores[i], y, c, roles, r, g, recent, pairs, stack, scratch, row)
        else:
            regress_row(scores[i], y, c, roles, r, g, recent, pairs, stack, scratch, row)
        one, two = out[i, SCORE], row[SCORE]
        mixed = mixed_score(one, two, second_share(eta, lead[0]), classes)
        out[i, SCORE] = mixed
        out[i, ROW_LOSS] = log1pexp(-y * mixed) if classes else 0.5 * (y - mixed) * (y - mixed)
        if c == 0.0:
            continue
        if is_late:
            one, two = served[i, FIRST], served[i, SECOND]
        unit = 0.0 if classes else 0.5 * g[ABSOLUTE]
        apart = loss_of(one, y, unit, classes) - loss_of(two, y, unit, classes)
        if abs(apart) < np.inf:
            lead[0] = _FORGETTING * lead[0] + min(c, 1.0) * apart
