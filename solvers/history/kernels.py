"""Kernels of history columns: one pass over the rows, each read before it enters.

The table of a group has sets of 8 slots, and a key has two candidate sets. A slot has STRIDE
numbers, of which a group has those that its statistics need:

    time, last, the latest labels, then for each half-life a block of
    weight, mean, scatter (weighted sum of squares about the mean), label weight, label means

Means are kept and not sums: decay does not change a mean, so years without a row cannot make 0/0. A
weight is the one at the slot's time, and it is decayed when it is read. Numbers are finite: NONE
stands for a time or a label that is not known. The code has only sums, products and square roots,
so no bit depends on the C library.
"""

import math
from typing import Any

import numpy as np

from dualstream.solvers.jit import (
    F8,
    F8_2D,
    I4,
    I8,
    I8_2D,
    RO_F8,
    RO_F8_2D,
    RO_I4,
    RO_I8,
    RO_I8_2D,
    kernel,
)
from dualstream.solvers.rows.scalar import MAGIC, bits_of, clip, exp_of, float_of, log_of, prefetch
from dualstream.solvers.rows.text.tokens import LARGEST, ZERO

# Statistics, as bits of FLAGS, in the order of their columns; `labels` is after SINCE.
LAST, CHANGE, SINCE, COUNT, SUM, MEAN, DEVIATION, DIFFERENCE, Z, LABEL_COUNT, LABEL_MEAN = (
    1 << bit for bit in range(11)
)
OF_LAST = LAST | CHANGE
OF_SCATTER = DEVIATION | Z
OF_MEAN = SUM | MEAN | DIFFERENCE | OF_SCATTER
OF_WEIGHT = COUNT | OF_MEAN
OF_LABELS = LABEL_COUNT | LABEL_MEAN

# Columns of `groups`. TIME, OF: index among the inputs, or -1. COLUMN, WIDTH: its columns among
# all. FIRST_SET, SETS: its sets among all. ..._AT: offset of a number within a slot, or a block.
(FLAGS, BY_START, BY_STOP, TIME, OF, COLUMN, WIDTH, FIRST_SET, SETS, FIRST_NUMBER, STRIDE) = range(
    11
)
LAST_AT, LAGS_AT, LAGS, BLOCKS_AT, HALF_LIVES, TIMED, BLOCK, LABELS_AT = range(11, 19)
GROUP_FIELDS = 19

# Columns of `counts`.
LATE, EVICTED, LOST_LABELS, NEW = range(4)
COUNT_FIELDS = 4

# Rows of `factors`: a weight is multiplied by SEEN when it is read and by KEEP when a row enters.
# MINE is the weight of the row itself.
SEEN, KEEP, MINE = range(3)

WAYS = 8
"""Slots of a set: their keys are one cache line."""
RING = 32
"""Rows whose inputs are kept: more than 2 AHEAD."""
AHEAD = 8
"""Rows from a prefetch to the use of what it loads."""

NONE = -1e300
"""Stands for a time or label that is not known; below any number of a row."""
_TINY = 1e-60
"""A weight below this is 0, so that no denormal number arises."""
_FAR = 256.0
"""Half-lives after which nothing is left."""
_Z_LIMIT, _FLAT, _SMALL_SCATTER = 100.0, 1e-9, 1e-200
_ROUNDING = 1e-9
"""Relative error of a weight that many steps of decay have rounded."""
_LN2 = 0.6931471805599453
_LOW = 0xFFFFFFFF
# Odd, and written as signed: Python's larger numbers are not integers of 64 bits to numba.
_MIX = 0x9E3779B97F4A7C15 - 2**64
_MIX_SECOND = 0xD6E8FEB86659FD93 - 2**64


@kernel(inline=True)
def decay(x: float) -> float:
    """2^-x for x >= 0; 0 from 256 half-lives on. Without branches, which LLVM vectorizes."""
    nearest = (x + MAGIC) - MAGIC
    whole = nearest - (1.0 if nearest > x else 0.0)
    power: float = float_of((1023 - bits_of(whole + MAGIC)) << 52)
    factor = exp_of(-_LN2 * (x - whole)) * power
    return factor if x < _FAR else 0.0


@kernel
def decay_of(x: float) -> float:
    """2^-x, for Python."""
    return decay(x)


@kernel(inline=True)
def log_one_plus(x: float) -> float:
    """log(1 + x) for x >= 0."""
    return log_of(1.0 + x)


@kernel(inline=True)
def flushed(weight: float) -> float:
    """A weight, or 0 if it is tiny."""
    return weight if weight >= _TINY else 0.0


@kernel(inline=True)
def read_inputs(indices: RO_I4, values: RO_F8, begin: int, end: int, width: int, inputs: F8) -> int:
    """inputs (m,) = the entries from index `width` on, NaN for what the row lacks; returns the end
    of the other entries."""
    for j in range(inputs.shape[0]):
        inputs[j] = np.nan
    while end > begin and indices[end - 1] >= width:
        end -= 1
        x = values[end]
        inputs[indices[end] - width] = x if abs(x) > ZERO else 0.0
    return end


@kernel(inline=True)
def key_of(group: RO_I8, by: RO_I8, inputs: RO_F8) -> int:
    """Key of a row in a group; 0 if a key column, or a time that the group needs, is missing.

    One column gives each number a key of its own, as each step is a permutation.
    """
    if group[TIMED] != 0 and not inputs[group[TIME]] == inputs[group[TIME]]:
        return 0
    key: Any = np.int64(0)  # numpy's, which wraps without a compiler too
    for j in range(group[BY_START], group[BY_STOP]):
        x = inputs[by[j]]
        if not x == x:
            return 0
        key = (key + np.int64(x)) * _MIX
        key ^= (key >> 32) & _LOW
    return int(key) if key != 0 else 1


@kernel(inline=True)
def set_of(key: int, choice: int, group: RO_I8) -> int:
    """Candidate set 0 or 1 of a key, among the sets of all groups."""
    mixed = key if choice == 0 else key * _MIX_SECOND
    return int(group[FIRST_SET] + ((((mixed >> 32) & _LOW) * group[SETS]) >> 32))


@kernel(inline=True)
def slot_of(key: int, group: RO_I8, table: RO_I8_2D) -> int:
    """Slot of a key among those of all groups, or -1. Without branches, as it is in any slot."""
    slot = -1
    for choice in range(2):
        line = set_of(key, choice, group)
        for way in range(WAYS):
            slot = line * WAYS + way if table[2 * line, way] == key else slot
    return slot


@kernel(inline=True)
def slot_to_use(key: int, group: RO_I8, table: RO_I8_2D) -> int:
    """Slot for a new key: in the set with more empty slots, or the least recently used one."""
    slot, least, most_empty = -1, 0, -1
    for choice in range(2):
        line = set_of(key, choice, group)
        empty, way_of_lowest = 0, 0
        for way in range(WAYS):
            empty += 1 if table[2 * line + 1, way] == 0 else 0
            if table[2 * line + 1, way] < table[2 * line + 1, way_of_lowest]:
                way_of_lowest = way
        lowest = table[2 * line + 1, way_of_lowest]
        if empty > most_empty or (empty == most_empty and lowest < least):
            slot, least, most_empty = line * WAYS + way_of_lowest, lowest, empty
    return slot


@kernel(inline=True)
def start_of(slot: int, group: RO_I8) -> int:
    """Index of the first number of a slot."""
    return int(group[FIRST_NUMBER] + (slot - group[FIRST_SET] * WAYS) * group[STRIDE])


@kernel(inline=True)
def clear_slot(start: int, group: RO_I8, numbers: F8) -> None:
    """The numbers of a key without rows."""
    for j in range(start, start + group[STRIDE]):
        numbers[j] = 0.0
    if group[TIME] >= 0:
        numbers[start] = NONE
    for lag in range(group[LAGS]):
        numbers[start + group[LAGS_AT] + lag] = NONE


@kernel(inline=True)
def find_factors(gap: float, older: bool, group: RO_I8, rates: RO_F8, factors: F8_2D) -> None:
    """Factors of each half-life; see SEEN, KEEP and MINE.

    A row that is older than the newest decays nothing: its own weight is smaller.
    """
    if group[TIMED] == 0:
        for h in range(rates.shape[0]):
            factors[SEEN, h], factors[KEEP, h], factors[MINE, h] = 1.0, rates[h], 1.0
        return
    for h in range(rates.shape[0]):
        factor = decay(gap * rates[h])
        factors[SEEN, h] = factors[KEEP, h] = 1.0 if older else factor
        factors[MINE, h] = factor if older else 1.0


@kernel(inline=True)
def read_columns(
    start: int,
    value: float,
    since: float,
    group: RO_I8,
    factors: RO_F8_2D,
    numbers: RO_F8,
    totals: RO_F8,
    out: F8,
) -> None:
    """Columns of a row in a group from the slot of its key; start -1: a new key.

    What is missing, and 0 where a statistic is 0 without rows, stays NaN: neither becomes an entry.
    """
    flags, k, classes = group[FLAGS], group[HALF_LIVES], totals.shape[0] - 1
    label_means = group[COLUMN] + group[WIDTH] - k * classes
    if start < 0:
        if flags & LABEL_MEAN:
            for j in range(k * classes):
                out[label_means + j] = totals[1 + j % classes]
        return
    c = group[COLUMN]
    if flags & OF_LAST:
        last = numbers[start + group[LAST_AT]]
        if flags & LAST:
            out[c] = last
            c += 1
        if flags & CHANGE:
            out[c] = value - last
            c += 1
    if flags & SINCE:
        out[c] = since
        c += 1
    for lag in range(group[LAGS]):
        label = numbers[start + group[LAGS_AT] + lag]
        if classes > 1:
            for j in range(classes):
                if label == j:
                    out[c + j] = 1.0
        elif label != NONE:
            out[c] = label
        c += classes
    for h in range(k):
        at, seen, column = start + group[BLOCKS_AT] + h * group[BLOCK], factors[SEEN, h], c + h
        if flags & OF_WEIGHT:
            weight = numbers[at]
            if flags & COUNT:
                out[column] = weight * seen
                column += k
            if flags & OF_MEAN:
                mean = numbers[at + 1]
                difference = value - mean
                if flags & SUM:
                    out[column] = weight * seen * mean
                    column += k
                if flags & MEAN:
                    out[column] = mean
                    column += k
                deviation = math.sqrt(numbers[at + 2] / weight) if flags & OF_SCATTER else 0.0
                if flags & DEVIATION:
                    out[column] = deviation
                    column += k
                if flags & DIFFERENCE:
                    out[column] = difference
                    column += k
                if flags & Z:
                    if deviation > _FLAT * abs(mean):
                        out[column] = clip(difference / deviation, -_Z_LIMIT, _Z_LIMIT)
                    column += k
        if flags & OF_LABELS:
            weight = numbers[at + group[LABELS_AT]] * seen
            if flags & LABEL_COUNT:
                out[column] = weight
            if flags & LABEL_MEAN:
                # Towards the mean of all labels, which counts as one label.
                part = weight / (weight + 1.0)
                for j in range(classes):
                    overall = totals[1 + j]
                    mean = numbers[at + group[LABELS_AT] + 1 + j]
                    smooth = overall + part * (mean - overall) if weight > 0.0 else overall
                    out[label_means + h * classes + j] = smooth


@kernel(inline=True)
def take_logs(logged: RO_I8, terms: F8, out: F8) -> None:
    """Replace counts and times by log(1 + x), in a loop of its own, which LLVM vectorizes."""
    for j in range(logged.shape[0]):
        terms[j] = out[logged[j]]
    for j in range(terms.shape[0]):
        # The logarithm of a NaN would be some number.
        terms[j] = log_one_plus(terms[j]) if terms[j] == terms[j] else np.nan
    for j in range(logged.shape[0]):
        out[logged[j]] = terms[j]


@kernel(inline=True)
def target_of(label: float, j: int, classes: int) -> float:
    """What the mean of class j counts of a label; without classes the label."""
    if classes == 1:
        return label
    return 1.0 if label == j else 0.0


@kernel(inline=True)
def unit_of(label: float) -> float:
    """A label of a binary model as 0 or 1; NaN stays."""
    if not label == label:
        return label
    return 1.0 if label > 0.0 else 0.0


@kernel(inline=True)
def enter_value(start: int, value: float, group: RO_I8, factors: RO_F8_2D, numbers: F8) -> None:
    """Count a row in weight, mean and scatter of each half-life, by Welford's step."""
    flags = group[FLAGS]
    for h in range(group[HALF_LIVES]):
        at, keep, mine = (
            start + group[BLOCKS_AT] + h * group[BLOCK],
            factors[KEEP, h],
            factors[MINE, h],
        )
        kept = flushed(numbers[at] * keep)
        if flags & OF_MEAN:
            scatter = 0.0
            if kept > 0.0:
                difference = value - numbers[at + 1]
                part = (mine / (kept + mine)) * difference
                numbers[at + 1] += part
                if flags & OF_SCATTER:
                    scatter = numbers[at + 2] * keep + kept * part * difference
            else:
                # A step from the mean to the value would lose a small value after a large mean.
                numbers[at + 1] = value
            if flags & OF_SCATTER:
                numbers[at + 2] = scatter if scatter > _SMALL_SCATTER else 0.0
        numbers[at] = kept + mine


@kernel(inline=True)
def count_label(
    at: int, label: float, keep: float, mine: float, classes: int, group: RO_I8, numbers: F8
) -> None:
    """Decay the weight of the labels at `at`, and count a label, unless it is NaN, in it and in the
    means."""
    weight = flushed(numbers[at] * keep)
    if label == label and mine > 0.0:
        if group[FLAGS] & LABEL_MEAN:
            for j in range(classes):
                target, mean = target_of(label, j, classes), numbers[at + 1 + j]
                if weight > 0.0:
                    target = mean + (mine / (weight + mine)) * (target - mean)
                numbers[at + 1 + j] = target
        weight += mine
    numbers[at] = weight


@kernel(inline=True)
def enter_label(
    start: int,
    label: float,
    enters: bool,
    classes: int,
    group: RO_I8,
    factors: RO_F8_2D,
    numbers: F8,
) -> None:
    """Count a label, and decay the label weights; label NaN decays alone.

    enters  the row enters with its label; otherwise the label is late and moves no clock
    """
    is_label = label == label
    if is_label:
        first = start + group[LAGS_AT]
        for lag in range(group[LAGS] - 1, 0, -1):
            numbers[first + lag] = numbers[first + lag - 1]
        if group[LAGS] > 0:
            numbers[first] = label
    if not group[FLAGS] & OF_LABELS:
        return
    # With half-lives of rows, labels are what is counted.
    decays = enters if group[TIMED] != 0 else is_label
    for h in range(group[HALF_LIVES]):
        at = start + group[BLOCKS_AT] + h * group[BLOCK] + group[LABELS_AT]
        keep = factors[KEEP, h] if decays else 1.0
        count_label(at, label, keep, factors[MINE, h], classes, group, numbers)


@kernel(inline=True)
def mean_with(mean: float, part: float, before: float, after: float, unit: bool) -> float:
    """A mean in which a target with this part of the weight is replaced; in 0 to 1 if `unit`."""
    if part >= 1.0 - _ROUNDING:
        return after  # a step from the target before would lose a small one
    mean += part * (after - before)
    return clip(mean, 0.0, 1.0) if unit else clip(mean, -LARGEST, LARGEST)


@kernel(inline=True)
def replace_label(
    start: int,
    before: float,
    label: float,
    unit: bool,
    classes: int,
    group: RO_I8,
    factors: RO_F8_2D,
    numbers: F8,
) -> None:
    """Put a label in the place of the one that its row had before.

    Both have the weight of the row's age. With half-lives of rows, the age in labels is not known,
    so the label is one more. So it is where the weight shows that the label before is not counted,
    because the key was evicted since.
    """
    for lag in range(group[LAGS]):
        if numbers[start + group[LAGS_AT] + lag] == before:
            numbers[start + group[LAGS_AT] + lag] = label
            break
    if not group[FLAGS] & OF_LABELS:
        return
    for h in range(group[HALF_LIVES]):
        at = start + group[BLOCKS_AT] + h * group[BLOCK] + group[LABELS_AT]
        weight, mine, is_timed = numbers[at], factors[MINE, h], group[TIMED] != 0
        if not is_timed or weight < mine * (1.0 - _ROUNDING):
            keep = 1.0 if is_timed else factors[KEEP, h]
            count_label(at, label, keep, mine, classes, group, numbers)
        elif weight > 0.0 and group[FLAGS] & LABEL_MEAN:
            for j in range(classes):
                numbers[at + 1 + j] = mean_with(
                    numbers[at + 1 + j],
                    mine / weight,
                    target_of(before, j, classes),
                    target_of(label, j, classes),
                    unit,
                )


@kernel(inline=True)
def append(j: int, x: float, first: int, at: int, out_indices: I4, out_values: F8) -> int:
    """Append an entry to the row from `first` to `at`, or add it to the last one; returns the new
    `at`. Zeros go."""
    x = clip(x, -LARGEST, LARGEST)
    if at > first and out_indices[at - 1] == j:
        at -= 1
        x = clip(out_values[at] + x, -LARGEST, LARGEST)
    if x == 0.0:
        return at
    out_indices[at], out_values[at] = j, x
    return at + 1


@kernel
def apply_rows(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    labels: RO_F8,
    weights: RO_F8,
    served: RO_F8,
    replaced: RO_F8,
    learns: bool,
    is_binary: bool,
    width: int,
    groups: RO_I8_2D,
    by: RO_I8,
    rates: RO_F8_2D,
    logged: RO_I8,
    features: RO_I4,
    columns: RO_I8,
    table: I8_2D,
    numbers: F8,
    lines: F8_2D,
    clock: I8,
    totals: F8,
    counts: I8_2D,
    inputs: F8_2D,
    keys: I8_2D,
    factors: F8_2D,
    terms: F8,
    out: F8,
    ahead: int,
    out_indptr: I8,
    out_indices: I4,
    out_values: F8,
) -> int:
    """Replace the inputs of rows by history columns; returns the number of entries.

    labels             (n,) targets; with classes 0 to classes - 1, or -1 for another class
    served, replaced   (n,) as in Batch, or (0,); replaced in the numbers of the labels
    learns             False: rows are only read
    groups, by, rates  the fields of each group; inputs of their keys; (groups, half-lives): 1 /
                       seconds, or 2^(-1 / rows)
    logged             positions in `out` of columns that are log(1 + x)
    features, columns  (m,) increasing indices of columns, and the position of each in `out`
    table              (2 sets, 8) keys and rows of last use (0: empty) of each set, in turn
    numbers, lines     all slots; the same as cache lines
    clock, totals      (1,) rows that entered; (1 + classes,) number and means of all labels
    counts             (groups, COUNT_FIELDS)
    inputs, keys       (RING, ...) inputs of rows; their keys, the end of their own entries, and the
                       slots that the keys had when these were prefetched
    factors, terms     space for the factors of a group, and for the numbers whose log is taken
    out                space for the columns of a row
    ahead              AHEAD, or 0 for tables in a cache
    out_*              the rows, with room for all entries and columns
    """
    n, count, classes = labels.shape[0], groups.shape[0], totals.shape[0] - 1
    at, loaded = 0, 0
    for i in range(n):
        while loaded < n and loaded <= i + 2 * ahead:
            ring = loaded % RING
            keys[ring, count] = read_inputs(
                indices, values, indptr[loaded], indptr[loaded + 1], width, inputs[ring]
            )
            for g in range(count):
                key = key_of(groups[g], by, inputs[ring])
                keys[ring, g] = key
                if ahead > 0:
                    for choice in range(2):
                        line = 2 * set_of(key, choice, groups[g])
                        prefetch(table, line)
                        prefetch(table, line + 1)
            loaded += 1
        if ahead > 0 and i + ahead < n:
            for g in range(count):
                slot = slot_of(keys[(i + ahead) % RING, g], groups[g], table)
                keys[(i + ahead) % RING, count + 1 + g] = slot
                if slot >= 0 and keys[(i + ahead) % RING, g] != 0:
                    start = start_of(slot, groups[g])
                    for line in range(start >> 3, ((start + groups[g, STRIDE] - 1) >> 3) + 1):
                        prefetch(lines, line)
        ring = i % RING
        label = labels[i]
        before = replaced[i] if replaced.shape[0] > 0 else np.nan
        if is_binary:
            label, before = unit_of(label), unit_of(before)
        replaces = before == before
        is_late = served.shape[0] > 0 and served[i] == served[i] and label == label
        is_labelled = label == label and weights[i] > 0.0
        is_observed = not label == label and indptr[i] < indptr[i + 1]
        enters = learns and not is_late and (is_labelled or is_observed)
        counts_label = learns and is_labelled
        reads = not is_late and (not learns or label == label)
        if enters:
            clock[0] += 1
        if reads:
            for c in range(out.shape[0]):
                out[c] = np.nan
        for g in range(count):
            group, key = groups[g], keys[ring, g]
            if key == 0 or not (reads or enters or counts_label):
                continue
            time = inputs[ring, group[TIME]] if group[TIME] >= 0 else np.nan
            value = inputs[ring, group[OF]] if group[OF] >= 0 else 0.0
            slot = int(keys[ring, count + 1 + g]) if ahead > 0 and i >= ahead else -1
            # Rows in between may have put in the key, or another one in its place.
            if slot < 0 or table[2 * (slot // WAYS), slot % WAYS] != key:
                slot = slot_of(key, group, table)
            start = start_of(slot, group) if slot >= 0 else -1
            gap, since, older = 0.0, np.nan, False
            if slot >= 0 and time == time and numbers[start] != NONE:
                gap = time - numbers[start]
                older = gap < 0.0
                gap = abs(gap)
                if group[FLAGS] & SINCE:
                    since = 0.0 if older else gap
            find_factors(gap, older, group, rates[g], factors)
            if reads:
                read_columns(start, value, since, group, factors, numbers, totals, out)
            if enters and value == value:
                if slot < 0:
                    slot = slot_to_use(key, group, table)
                    start = start_of(slot, group)
                    line, way = 2 * (slot // WAYS), slot % WAYS
                    counts[g, NEW] += 1
                    counts[g, EVICTED] += 1 if table[line, way] != 0 else 0
                    table[line, way] = key
                    clear_slot(start, group, numbers)
                table[2 * (slot // WAYS) + 1, slot % WAYS] = clock[0]
                counts[g, LATE] += 1 if older else 0
                if not older:
                    if time == time:
                        numbers[start] = time
                    if group[FLAGS] & OF_LAST:
                        numbers[start + group[LAST_AT]] = value
                if group[FLAGS] & OF_WEIGHT:
                    enter_value(start, value, group, factors, numbers)
                enter_label(start, label, True, classes, group, factors, numbers)
            elif (
                is_late
                and counts_label
                and value == value
                and (group[LAGS] > 0 or group[FLAGS] & OF_LABELS)
            ):
                if slot < 0:
                    counts[g, LOST_LABELS] += 1
                elif replaces:
                    unit = is_binary or classes > 1
                    replace_label(start, before, label, unit, classes, group, factors, numbers)
                else:
                    enter_label(start, label, False, classes, group, factors, numbers)
        if counts_label and replaces and totals[0] > 0.0:
            for j in range(classes):
                totals[1 + j] = mean_with(
                    totals[1 + j],
                    1.0 / totals[0],
                    target_of(before, j, classes),
                    target_of(label, j, classes),
                    is_binary or classes > 1,
                )
        elif counts_label:
            totals[0] += 1.0
            for j in range(classes):
                totals[1 + j] += (target_of(label, j, classes) - totals[1 + j]) / totals[0]
        p, end, first = indptr[i], keys[ring, count], at
        if reads:
            take_logs(logged, terms, out)
            for c in range(features.shape[0]):
                x = out[columns[c]]
                if x == x:
                    while p < end and indices[p] <= features[c]:
                        out_indices[at], out_values[at] = indices[p], values[p]
                        at += 1
                        p += 1
                    at = append(features[c], x, first, at, out_indices, out_values)
        while p < end:
            out_indices[at], out_values[at] = indices[p], values[p]
            at += 1
            p += 1
        out_indptr[i + 1] = at
    return at
