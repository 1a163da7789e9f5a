"""Alerts: a threshold that a fixed part of the rows exceeds in the long run.

The threshold is the score above which a *level* of the last RING rows lie. After each row the level
moves by how far the rows so far have fallen short of the rate,

    debt = rate * rows - alerts
    logit(level) = logit(rate) + STEP * debt + trend,    trend += TREND * rate * debt

which is the step of the pinball loss, applied to the level and not in units of the score, which
drift (Gibbs and Candes, "Adaptive conformal inference under distribution shift", 2021). On the
scale of the logarithm one alert moves a rate of 0.001 as far, in proportion, as one of 0.1.

At a debt of MAX_DEBT every row alerts, and at -MAX_DEBT none. So |debt| <= MAX_DEBT + 1 after
every row, for any sequence of scores, also of equal ones: once 1,000 rows should have alerted, the
rate is right within 2.1 %.

Among the highest TAIL rows of the ring, scores are taken to fall off exponentially: between the
ranks of single rows, and above all of them, the threshold has the level that such a tail gives.
"""

import math

from dualstream.solvers.jit import F8, I8, RO_F8, RO_I4, RO_I8, RO_U1, U1, kernel

RING = 1000
"""Rows whose scores give the threshold."""
WARM_UP = 20
"""First rows, which do not count: there is no threshold yet."""
TAIL = 20
STEP, TREND = 0.2, 0.005
MAX_TREND = 4.0
MAX_DEBT = 20.0
LARGEST_SCORE = 1e290
"""Scores are clipped to this, so that a state is always finite."""
LATEST = 100
"""Alerts whose times are kept."""
NO_TIME = -1e300
"""The time of a row without one."""
RECENT = 1000
"""Labelled rows whose decisions are kept."""

SKIPPED, LEARNED, SERVED, LATE, LABELLED = range(5)
"""What a row does: nothing; moves the threshold, with a label; moves it by the score that it was
served with, without a label, which may come later; LATE is LABELLED if such a row waits for its
label, and else LEARNED; LABELLED does not move the threshold."""

COUNTS = 11
MOVED, ALERTS, WAITING, ROWS, POSITIVES, CAUGHT, CALLED = range(7)
FALSE_POSITIVES, FALSE_NEGATIVES, PROBABLE_FALSE_POSITIVES, PROBABLE_FALSE_NEGATIVES = range(
    7, COUNTS
)
"""Counts: rows that moved the threshold, and alerts among them; rows that
moved it without a label, less the late labels since. Labelled rows, positive ones, those
that alerted, and all labelled alerts. Mistakes of the decision of least cost, and of the more
probable label."""

POSITIVE, ALERTED, DECIDED, PROBABLE = 1, 2, 4, 8
"""Bits of a labelled row: its label, whether it alerted, both decisions."""


@kernel
def threshold_of(ordered: RO_F8, moved: int, alerts: int, rate: float, trend: float) -> float:
    """The threshold after `moved` rows; infinite if no row alerts, or every row.

    ordered  (RING,)  the scores of the ring in increasing order
    """
    if moved < WARM_UP:
        return math.inf
    debt = rate * (moved - WARM_UP) - alerts
    if debt >= MAX_DEBT:
        return -math.inf
    if debt <= -MAX_DEBT:
        return math.inf
    odds = math.log(rate / (1.0 - rate)) + STEP * debt + trend
    n = min(moved, ordered.shape[0])
    above = n / (1.0 + math.exp(-odds))
    tail = min(TAIL, n // 2)
    if above < tail:
        least, excess = ordered[n - 1 - tail], 0.0
        for i in range(n - tail, n):
            excess += ordered[i] - least
        return float(least + excess / tail * math.log(tail / above))
    rank = min(int(above), n - 2)
    high, low = ordered[n - 1 - rank], ordered[n - 2 - rank]
    return float(high + (low - high) * min(above - rank, 1.0))


@kernel
def put_in_order(ordered: F8, count: int, score: float, leaves: bool, old: float) -> None:
    """Insert a score among `count` ordered ones; if `leaves`, in place of an `old` one."""
    end = count
    if leaves:
        low, high = 0, count
        while low < high:
            middle = (low + high) >> 1
            if ordered[middle] < old:
                low = middle + 1
            else:
                high = middle
        end = low
    while end > 0 and ordered[end - 1] > score:
        ordered[end] = ordered[end - 1]
        end -= 1
    while leaves and end + 1 < count and ordered[end + 1] < score:
        ordered[end] = ordered[end + 1]
        end += 1
    ordered[end] = score


@kernel
def time_of(row: int, feature: int, indptr: RO_I8, indices: RO_I4, values: RO_F8) -> float:
    """The value of a feature of a row, or NO_TIME."""
    for p in range(indptr[row], indptr[row + 1]):
        if indices[p] == feature:
            return float(values[p])
    return NO_TIME


@kernel
def count_decisions(
    kinds: RO_U1,
    labels: RO_F8,
    scores: RO_F8,
    served: RO_F8,
    as_served: RO_F8,
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    time: int,
    rate: float,
    cut: float,
    ring: F8,
    alerted: U1,
    ordered: F8,
    trend: F8,
    times: F8,
    recent: U1,
    counts: I8,
    marks: U1,
) -> None:
    """Decide rows in their order, and move the threshold by each.

    kinds    (n,)       SKIPPED, LEARNED, SERVED or LATE
    served   (n,)       as in Batch, or (0,)
    as_served (n,)      1 or 0: whether a row with a late label alerted when it was served; NaN for
                        others; or (0,)
    time     index of the feature that is the time; -1 for none
    rate     0: nothing alerts
    cut      scores from here on are decided positive
    ring, alerted   (RING,)  scores and alerts, row t at t mod RING
    ordered  (RING,)    the scores of the ring in increasing order
    trend    (1,)
    times    (LATEST,)  times of alerts, alert t at t mod LATEST
    recent   (RECENT,)  bits of labelled rows, row t at t mod RECENT
    counts   (COUNTS,)
    marks    (n,)       whether each labelled row alerts; or (0,)
    """
    for i in range(kinds.shape[0]):
        kind = kinds[i]
        if kind == SKIPPED:
            continue
        if kind == SERVED:
            counts[WAITING] += 1
        elif kind == LATE:
            kind = LABELLED if counts[WAITING] > 0 else LEARNED
            counts[WAITING] = max(counts[WAITING] - 1, 0)
        score = served[i] if kind == SERVED else scores[i]
        if not abs(score) <= LARGEST_SCORE:  # True for NaN, too
            score = LARGEST_SCORE if score > 0.0 else -LARGEST_SCORE
        score += 0.0  # no negative zero: equal scores have equal bits
        alerts = False
        if rate > 0.0:
            moved = counts[MOVED]
            alerts = score > threshold_of(ordered, moved, counts[ALERTS], rate, trend[0])
            if kind != LABELLED:
                if alerts:
                    times[counts[ALERTS] % LATEST] = time_of(i, time, indptr, indices, values)
                    counts[ALERTS] += 1
                at, count = moved % RING, min(moved, RING)
                put_in_order(ordered, count, score, count == RING, ring[at])
                ring[at], alerted[at] = score, 1 if alerts else 0
                counts[MOVED] += 1
                if moved >= WARM_UP:
                    debt = rate * (moved + 1 - WARM_UP) - counts[ALERTS]
                    change = TREND * rate * min(max(debt, -MAX_DEBT), MAX_DEBT)
                    trend[0] = min(max(trend[0] + change, -MAX_TREND), MAX_TREND)
        if kind == SERVED:
            continue
        if as_served.shape[0] > 0 and as_served[i] == as_served[i]:
            alerts = as_served[i] > 0.0
        if marks.shape[0] > 0:
            marks[i] = 1 if alerts else 0
        positive, decided, probable = labels[i] > 0.0, score >= cut, score >= 0.0
        recent[counts[ROWS] % RECENT] = (
            (POSITIVE if positive else 0)
            | (ALERTED if alerts else 0)
            | (DECIDED if decided else 0)
            | (PROBABLE if probable else 0)
        )
        counts[ROWS] += 1
        counts[POSITIVES] += positive
        counts[CALLED] += alerts
        counts[CAUGHT] += alerts and positive
        counts[FALSE_POSITIVES] += decided and not positive
        counts[FALSE_NEGATIVES] += positive and not decided
        counts[PROBABLE_FALSE_POSITIVES] += probable and not positive
        counts[PROBABLE_FALSE_NEGATIVES] += positive and not probable
