"""Kernels of adaptive conformal inference: rows are judged, counted, and added to the residuals.

residuals  (WINDOW,)   of row t at t mod WINDOW
ordered    (WINDOW,)   the same, ascending
levels     (L,)        wanted coverage
misses     (L,)        a_t of each level: the share of residuals that its threshold leaves out
counts     (2,)        RESIDUALS, and JUDGED rows: those that had an interval
totals     (2, L)      COVERED, and UNBOUNDED rows
sizes      (L,)        sums of the widths, or of the set sizes, of bounded rows
recent     (WINDOW, L) whether row t that was judged is covered, at t mod WINDOW
last       (KEPT, 3 + L) of NUMBER: log position, label, score and thresholds of row t that was
                       judged, at t mod KEPT; (0, 0) of other kinds

A threshold is a residual, infinity for all labels, -infinity for none, or NaN before MIN_RESIDUALS.
Residuals are distances from the score, negative margins of the label, or -log of the probability
of the class. Margins and logarithms have the order of 1 - p, without its rounding.
"""

import math

import numpy as np

from dualstream.solvers.jit import (
    F8,
    F8_2D,
    I8,
    I8_2D,
    RO_B1,
    RO_F8,
    RO_F8_2D,
    RO_I8,
    U1_2D,
    kernel,
)
from dualstream.solvers.online.class_choice import LOG_LOSS_CAP

WINDOW = 1000
KEPT = 200
MIN_RESIDUALS = 20
STEP = 0.01
"""gamma of Gibbs and Candes (2021)."""
LARGEST = 1e290
"""Residuals are clipped to this; it is that of a class that was not known."""
RESIDUALS, JUDGED = range(2)
COVERED, UNBOUNDED = range(2)
NUMBER, BINARY, CLASSES = range(3)
Q, SIZE = range(2)
"""Columns of what is kept for each level of a row that waits for its label."""


@kernel(inner=True)
def threshold(ordered: F8, n_residuals: int, miss: float) -> float:
    """The quantile 1 - miss of the first `n_residuals` numbers."""
    if n_residuals < MIN_RESIDUALS:
        return np.nan
    if miss <= 0.0:
        return np.inf
    if miss >= 1.0:
        return -np.inf
    index = min(max(int(math.ceil((n_residuals + 1) * (1.0 - miss))) - 1, 0), n_residuals - 1)
    return np.inf if ordered[index] >= LARGEST else ordered[index]


@kernel
def thresholds(ordered: F8, counts: I8, misses: F8, out: F8) -> None:
    """The threshold of each level for the next row, (L,)."""
    n_residuals = min(counts[RESIDUALS], WINDOW)
    for level in range(misses.shape[0]):
        out[level] = threshold(ordered, n_residuals, misses[level])


@kernel(inner=True)
def replace_ordered(ordered: F8, n_residuals: int, old: float, new: float) -> None:
    """Replace one of the first `n_residuals` numbers, or with NaN as `old` add one."""
    at = n_residuals
    if old == old:
        at = int(np.searchsorted(ordered[:n_residuals], old))
    while at > 0 and ordered[at - 1] > new:
        ordered[at] = ordered[at - 1]
        at -= 1
    last = n_residuals - 1 if old == old else n_residuals
    while at < last and ordered[at + 1] < new:
        ordered[at] = ordered[at + 1]
        at += 1
    ordered[at] = new


@kernel(inner=True)
def set_size(losses: RO_F8_2D, row: int, best: int, q: float) -> float:
    """Number of classes in a set, which has the best class."""
    size = 0.0
    for k in range(losses.shape[1]):
        if k == best or losses[row, k] <= q:
            size += 1.0
    return size


@kernel
def add_rows(
    kind: int, scores: RO_F8, labels: RO_F8, weights: RO_F8, skipped: RO_B1,
    losses: RO_F8_2D, best: RO_I8, waited: RO_B1, served: RO_F8_2D,
    residuals: F8, ordered: F8, levels: RO_F8, misses: F8, counts: I8, totals: I8_2D,
    sizes: F8, recent: U1_2D, marks: U1_2D, first_seq: int, last: F8_2D,
) -> None:  # fmt: skip
    """Judge and count the rows in order, and add their residuals.

    skipped  (n,)       rows that do not count
    losses   (n, K)     -log of the probability of each class; NaN, or the cap, if it was not known
    labels   (n,)       of CLASSES: indices of classes; -1 for one that is not known
    best     (n,)       the predicted class
    waited   (n,)       rows with late labels; none if it is empty
    served   (n, 2 L)   their thresholds and sizes, as they were served
    marks    (L, n)     whether each row is covered; unchanged for rows without an interval; or
                        (0, 0)
    first_seq           log position of the first row
    """
    for i in range(labels.shape[0]):
        if skipped[i] or not weights[i] > 0.0:
            continue
        is_right, label = False, -1
        if kind == NUMBER:
            residual = abs(labels[i] - scores[i])
        elif kind == BINARY:
            is_right = (scores[i] >= 0.0) == (labels[i] > 0.0)
            residual = -scores[i] if labels[i] > 0.0 else scores[i]
        else:
            label = int(labels[i])
            residual = LARGEST
            if label >= 0 and losses[i, label] < LOG_LOSS_CAP:
                residual = losses[i, label]
            is_right = label >= 0 and best[i] == label
        if residual != residual:
            continue
        residual = min(max(residual, -LARGEST), LARGEST) + 0.0  # -0 becomes 0
        n_residuals = min(counts[RESIDUALS], WINDOW)
        is_late = waited.shape[0] > 0 and waited[i]
        has_interval = n_residuals >= MIN_RESIDUALS
        if is_late:
            has_interval = not np.isnan(served[i, Q])
        if has_interval:
            slot = counts[JUDGED] % WINDOW
            kept = counts[JUDGED] % KEPT
            if last.shape[0] > 0:
                last[kept, 0] = first_seq + i
                last[kept, 1] = labels[i]
                last[kept, 2] = scores[i]
            for level in range(levels.shape[0]):
                if is_late:
                    q, size = served[i, 2 * level + Q], served[i, 2 * level + SIZE]
                else:
                    q = threshold(ordered, n_residuals, misses[level])
                    if kind == NUMBER:
                        size = 2.0 * max(q, 0.0)
                    elif kind == BINARY:
                        size = 2.0 if abs(scores[i]) <= q else 1.0
                    else:
                        size = set_size(losses, i, best[i], q)
                if last.shape[0] > 0:
                    last[kept, 3 + level] = q
                is_hit = residual <= q
                is_covered = is_hit or is_right or (kind == NUMBER and residual == 0.0)
                totals[COVERED, level] += is_covered
                recent[slot, level] = is_covered
                if marks.shape[0] > 0:
                    marks[level, i] = is_covered
                if q == np.inf:
                    totals[UNBOUNDED, level] += 1
                else:
                    sizes[level] += size
                misses[level] += STEP * (1.0 - levels[level] - (0.0 if is_hit else 1.0))
            counts[JUDGED] += 1
        slot_of_residual = counts[RESIDUALS] % WINDOW
        is_full = counts[RESIDUALS] >= WINDOW
        replace_ordered(
            ordered, n_residuals, residuals[slot_of_residual] if is_full else np.nan, residual
        )
        residuals[slot_of_residual] = residual
        counts[RESIDUALS] += 1
