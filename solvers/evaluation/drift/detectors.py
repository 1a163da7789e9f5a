"""ADWIN and Page-Hinkley drift detectors, row by row.

ADWIN: Bifet and Gavalda, "Learning from time-changing data with adaptive windowing" (SDM 2007), in
its second form, ADWIN2. The window is a list of exponentially larger buckets, at most five of a
size. Each clock tick checks whether it can be split in two parts whose means differ by more than

    sqrt(2 m (v / W) d) + (2/3) m d,   d = ln(2 ln(W) / delta),   m = 1/(n0 - 4) + 1/(n1 - 4),

v being the sum of squared deviations in the window, W its rows, n0 and n1 those of the two parts.
Page-Hinkley: Page, "Continuous inspection schemes" (Biometrika 41, 1954), with a fading sum and in
both directions. Parameters, start-up and the order of additions are those of River's `ADWIN` and
`PageHinkley`, and so are the detections, row for row. After a detection, a detector restarts.

Both assume losses of about 0 to 1. Those of a regression have the unit of its target. So a detector
may divide losses by their mean over some rows after its last restart; then its detections do not
depend on the unit. The divisor stays until the next restart: one that follows the losses would hide
slow changes, and show changes where there are none.
"""

import math

from dualstream.solvers.jit import B1, F8, F8_2D, I8, I8_2D, RO_F8, kernel

LEVELS = 48
"""Bucket sizes, 1, 2, 4 ... rows: more than any stream needs."""
MAX_BUCKETS = 5
"""Of one size; with one more, two are merged."""
BUCKET_NUMBERS = 1 + 2 * (MAX_BUCKETS + 1)
"""Numbers of a level: its number of buckets, then their sums, then their squared deviations."""

DELTA = 0.002
CLOCK = 32
MIN_PART = 5.0
GRACE = 10.0

TOLERANCE = 0.005
THRESHOLD = 50.0
FADING = 1.0 - 0.0001
MIN_ROWS = 30.0

# The scale of a regression's losses is the mean of SCALE_ROWS rows; those that a new model or one
# after a change needs to learn come before. At this scale the mean loss is 1/7, so that a squared
# normal error has a standard deviation of 0.2, like the errors of a classifier that errs in 4 %.
SCALE_AFTER, SCALE_ROWS = 100.0, 200.0
SCALED_MEAN = 1.0 / 7.0
LARGEST_RATIO = 20.0
"""A loss counts as at most this number of mean losses: one broken reading changes little."""

LARGEST_LOSS = 1e100
"""The detectors skip a larger loss, whose square would be infinite."""

# State of the detectors, besides the buckets.
(
    TOTAL, DEVIATIONS, WIDTH, TICK, USED_LEVELS, CUT,
    MEAN, ROWS, INCREASE, DECREASE, MIN_INCREASE, MAX_DECREASE, FOUND,
    NUMBERS,
) = range(14)  # fmt: skip

# State of one detector's scale: rows since its restart, and the means before and of SCALE_ROWS.
# SCALE_SEEN is UNSCALED for a detector that takes losses as they are.
SCALE_SEEN, SCALE_EARLY, SCALE_MEAN, SCALE_NUMBERS = range(4)
UNSCALED = -1.0

# An event: its detector, its position, and whether losses rose.
ADWIN, PAGE_HINKLEY = range(2)
EVENT_ROW, EVENT_SEQ, EVENT_DETECTOR, EVENT_RISING, EVENT_NUMBERS = range(5)

_SUMS = 1
_SQUARES = 2 + MAX_BUCKETS


@kernel(inline=True)
def _to_scale(loss: float, scale: F8) -> float:
    """The loss in one detector's scale; NaN while the scale is being measured."""
    seen, early = float(scale[SCALE_SEEN]), float(scale[SCALE_EARLY])
    if seen == UNSCALED:
        return loss
    if seen >= SCALE_AFTER + SCALE_ROWS:
        return SCALED_MEAN * min(loss / float(scale[SCALE_MEAN]), LARGEST_RATIO)
    if early > 0.0:
        loss = min(loss, LARGEST_RATIO * early)
    if seen < SCALE_AFTER:
        scale[SCALE_EARLY] += (loss - early) / (seen + 1.0)
    else:
        scale[SCALE_MEAN] += loss / SCALE_ROWS
    scale[SCALE_SEEN] = seen + 1.0
    if scale[SCALE_SEEN] == SCALE_AFTER + SCALE_ROWS and scale[SCALE_MEAN] == 0.0:
        scale[SCALE_SEEN] = SCALE_AFTER  # no loss so far: measure again
    return math.nan


@kernel(inline=True)
def _restart_scale(scale: F8) -> None:
    if scale[SCALE_SEEN] != UNSCALED:
        scale[:] = 0.0


@kernel(inline=True)
def _drop_oldest(numbers: F8, buckets: F8_2D) -> None:
    """Drop the oldest bucket of ADWIN's window."""
    last = int(numbers[USED_LEVELS]) - 1
    rows = float(1 << last)
    total, square = buckets[last, _SUMS], buckets[last, _SQUARES]
    numbers[WIDTH] -= rows
    numbers[TOTAL] -= total
    apart = total / rows - numbers[TOTAL] / numbers[WIDTH]
    width = numbers[WIDTH]
    numbers[DEVIATIONS] -= square + rows * width * apart * apart / (rows + width)
    left = int(buckets[last, 0]) - 1
    for k in range(left):
        buckets[last, _SUMS + k] = buckets[last, _SUMS + k + 1]
        buckets[last, _SQUARES + k] = buckets[last, _SQUARES + k + 1]
    buckets[last, _SUMS + left] = 0.0
    buckets[last, _SQUARES + left] = 0.0
    buckets[last, 0] = left
    if left == 0:
        numbers[USED_LEVELS] -= 1.0


@kernel(inline=True)
def _can_be_cut(numbers: F8, buckets: F8_2D) -> bool:
    """Whether the window has two parts of different means, and whether the older mean is larger."""
    width = numbers[WIDTH]
    level_of_trust = math.log(2.0 * math.log(width) / DELTA)
    spread = numbers[DEVIATIONS] / width
    least = 2.0 / 3.0 * level_of_trust * width
    squared = (2.0 - 1e-9) * level_of_trust * spread * width
    older, newer = 0.0, width
    older_total, newer_total = 0.0, numbers[TOTAL]
    for level in range(int(numbers[USED_LEVELS]) - 1, -1, -1):
        rows = float(1 << level)
        count = int(buckets[level, 0])
        for k in range(count):
            older += rows
            newer -= rows
            older_total += buckets[level, _SUMS + k]
            newer_total -= buckets[level, _SUMS + k]
            if level == 0 and k == count - 1:
                return False
            if newer < MIN_PART or older < MIN_PART:
                continue
            # Most splits fail the test times older * newer with a scale too small, which takes no
            # division and no square root. The margins are far above the rounding.
            first, second = older_total * newer, newer_total * older
            above = abs(first - second) + 1e-9 * (abs(first) + abs(second)) - least
            if above < 0.0 or above * above < squared * older * newer:
                continue
            apart = older_total / older - newer_total / newer
            scale = 1.0 / (older - MIN_PART + 1.0) + 1.0 / (newer - MIN_PART + 1.0)
            part = 2.0 / 3.0 * level_of_trust * scale
            if abs(apart) > part and abs(apart) > (
                math.sqrt(2.0 * scale * spread * level_of_trust) + part
            ):
                return True
    return False


@kernel(inline=True)
def _look_for_cuts(numbers: F8, buckets: F8_2D, rising: B1) -> int:
    """Shrink ADWIN's window while it can be split; 1 if it was, and whether the mean rose."""
    before = numbers[TOTAL] / numbers[WIDTH]
    is_cut = 0
    while _can_be_cut(numbers, buckets):
        is_cut = 1
        _drop_oldest(numbers, buckets)
    if is_cut:
        rising[0] = numbers[TOTAL] / numbers[WIDTH] > before
    return is_cut


@kernel(inline=True)
def _begin_adwin(numbers: F8, buckets: F8_2D) -> None:
    for at in range(TOTAL, CUT + 1):
        numbers[at] = 0.0
    for level in range(buckets.shape[0]):
        for at in range(buckets.shape[1]):
            buckets[level, at] = 0.0


@kernel
def watch_losses(
    losses: RO_F8,
    learned: B1,
    first_seq: int,
    rows: int,
    numbers: F8,
    buckets: F8_2D,
    scales: F8_2D,
    counts: I8,
    events: I8_2D,
    rising: B1,
) -> None:
    """Pass the losses of the learned rows to both detectors, in order.

    losses     (n,)            of each row; first_seq is the log position of the first
    rows       learned before them
    numbers    (NUMBERS,)      state of the detectors
    buckets    (LEVELS, BUCKET_NUMBERS)   ADWIN's window; in a level the oldest bucket is first
    scales     (2, SCALE_NUMBERS)   of each detector
    counts     (2, 2) flat     events of each detector: losses fell, losses rose
    events     (k, EVENT_NUMBERS)   the last ones; event t at index t mod k
    rising     (1,)            output buffer
    """
    for i in range(losses.shape[0]):
        if not learned[i]:
            continue
        rows += 1
        if not losses[i] <= LARGEST_LOSS:
            continue

        loss = _to_scale(losses[i], scales[ADWIN])
        if loss <= LARGEST_LOSS:
            if numbers[CUT] > 0.0:
                _begin_adwin(numbers, buckets)
            if numbers[USED_LEVELS] == 0.0:
                numbers[USED_LEVELS] = 1.0
            count = int(buckets[0, 0])
            buckets[0, _SUMS + count] = loss
            buckets[0, _SQUARES + count] = 0.0
            buckets[0, 0] = count + 1
            numbers[WIDTH] += 1.0
            if numbers[WIDTH] > 1.0:
                others = numbers[WIDTH] - 1.0
                apart = loss - numbers[TOTAL] / others
                numbers[DEVIATIONS] += others * apart * apart / numbers[WIDTH]
            numbers[TOTAL] += loss
            level = 0
            while buckets[level, 0] > MAX_BUCKETS and level + 1 < buckets.shape[0]:
                # One bucket too many: merge the two oldest into the newest of the next level.
                size = float(1 << level)
                first, second = buckets[level, _SUMS], buckets[level, _SUMS + 1]
                apart = first / size - second / size
                to = int(buckets[level + 1, 0])
                buckets[level + 1, _SUMS + to] = first + second
                buckets[level + 1, _SQUARES + to] = (
                    buckets[level, _SQUARES]
                    + buckets[level, _SQUARES + 1]
                    + size * 0.5 * apart * apart
                )
                buckets[level + 1, 0] = to + 1
                for k in range(MAX_BUCKETS - 1):
                    buckets[level, _SUMS + k] = buckets[level, _SUMS + k + 2]
                    buckets[level, _SQUARES + k] = buckets[level, _SQUARES + k + 2]
                for k in range(MAX_BUCKETS - 1, MAX_BUCKETS + 1):
                    buckets[level, _SUMS + k] = 0.0
                    buckets[level, _SQUARES + k] = 0.0
                buckets[level, 0] = MAX_BUCKETS - 1
                level += 1
                if numbers[USED_LEVELS] < level + 1.0:
                    numbers[USED_LEVELS] = level + 1.0
            numbers[TICK] += 1.0
            if numbers[TICK] >= CLOCK:
                numbers[TICK] = 0.0
                if numbers[WIDTH] > GRACE and _look_for_cuts(numbers, buckets, rising):
                    numbers[CUT] = 1.0
                    up = 1 if rising[0] else 0
                    at = (counts[0] + counts[1] + counts[2] + counts[3]) % events.shape[0]
                    events[at, EVENT_ROW] = rows
                    events[at, EVENT_SEQ] = first_seq + i
                    events[at, EVENT_DETECTOR] = ADWIN
                    events[at, EVENT_RISING] = up
                    counts[2 * ADWIN + up] += 1
                    _restart_scale(scales[ADWIN])

        loss = _to_scale(losses[i], scales[PAGE_HINKLEY])
        if not loss <= LARGEST_LOSS:
            continue
        if numbers[FOUND] > 0.0:
            for at in range(MEAN, FOUND + 1):
                numbers[at] = 0.0
        numbers[ROWS] += 1.0
        numbers[MEAN] += (1.0 / numbers[ROWS]) * (loss - numbers[MEAN])
        deviation = loss - numbers[MEAN]
        numbers[INCREASE] = FADING * numbers[INCREASE] + deviation - TOLERANCE
        numbers[DECREASE] = FADING * numbers[DECREASE] + deviation + TOLERANCE
        begins = numbers[ROWS] == 1.0
        if begins or numbers[INCREASE] < numbers[MIN_INCREASE]:
            numbers[MIN_INCREASE] = numbers[INCREASE]
        if begins:
            numbers[MAX_DECREASE] = -1.0
        if numbers[DECREASE] > numbers[MAX_DECREASE]:
            numbers[MAX_DECREASE] = numbers[DECREASE]
        if numbers[ROWS] >= MIN_ROWS:
            rose = numbers[INCREASE] - numbers[MIN_INCREASE]
            fell = numbers[MAX_DECREASE] - numbers[DECREASE]
            if rose > THRESHOLD or fell > THRESHOLD:
                numbers[FOUND] = 1.0
                up = 1 if rose > THRESHOLD else 0
                at = (counts[0] + counts[1] + counts[2] + counts[3]) % events.shape[0]
                events[at, EVENT_ROW] = rows
                events[at, EVENT_SEQ] = first_seq + i
                events[at, EVENT_DETECTOR] = PAGE_HINKLEY
                events[at, EVENT_RISING] = up
                counts[2 * PAGE_HINKLEY + up] += 1
                _restart_scale(scales[PAGE_HINKLEY])
