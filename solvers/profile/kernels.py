"""Kernels of the column profile: count rows, and compare each column with its own past.

A column has one row of `counts` (whole numbers) and one of `cells` (floats); the constants below
are their indices. Two windows of rows decay: a row has the weight GROWTH^t, which grows, so that no
row touches a column that it does not have. Every RESCALED_ROWS rows all sums are divided by the
weight of the last row.

After ALL_ROWS rows of a model, one row in ONE_IN is profiled and has the weight of ONE_IN rows.
"""

from dualstream.solvers.jit import F8, F8_2D, I8, I8_2D, RO_B1, RO_F8, RO_I4, RO_I8, kernel

MAX_COLUMNS = 256
"""Maximum number of columns of a profile; the first ones are kept."""
SHORT_ROWS, LONG_ROWS = 1_000.0, 10_000.0
"""Mean age of a row in the two windows, in rows."""

_SHORT_GROWTH = SHORT_ROWS / (SHORT_ROWS - 1.0)
_LONG_GROWTH = LONG_ROWS / (LONG_ROWS - 1.0)
_RESCALED_ROWS = 4_096
ALL_ROWS, ONE_IN = 8_192, 4
"""All rows are profiled up to ALL_ROWS, later one in ONE_IN: all cost as much as learning."""

# Kinds of a column.
UNKNOWN, NUMBER, BOOLEAN, CATEGORY, TEXT, TIME = range(6)
# Roles of a feature: what it says of its column.
NO_COLUMN, IS_NUMBER, IS_OTHER, IS_MISSING, IS_CATEGORY, IS_WORD, IS_TIME = range(7)
ROLE_SHIFT, CODE_SHIFT = 16, 32
"""A slot of the feature table is (role << 16 | column) << 32 | index + 1; 0 if it is empty."""
_COLUMN_MASK, _KEY_MASK = (1 << 16) - 1, (1 << 32) - 1

# `clock`: weight of the last row, and sum of all weights, in each window.
SHORT, LONG, SHORT_TOTAL, LONG_TOTAL, CLOCK = range(5)
# `sizes`
ROWS, LEARNED, COLUMNS, HAS_MORE, SIZES = range(5)
# `counts`; BIN is that of the last number.
FIRST_ROW, COUNT, OTHERS, LAST_ROW, BINNED_ROW, BIN, MISSING, KIND, FEATURE, COUNTS = range(10)
NOT_SEEN = -1
"""FIRST_ROW, LAST_ROW, BINNED_ROW and BIN before there is such a row."""
# `cells`: totals of the clock when the bins began, and weights of the rows with a category since.
LAST, MEAN, SQUARES, LOWEST, HIGHEST, SHORT_START, LONG_START, SHORT_HELD, LONG_HELD, BODY = range(
    10
)
SAMPLED = 128
"""Numbers of which the deciles are the edges of the bins."""
CELLS = BODY + SAMPLED

# The rest of `cells`, of numbers: first the sample; then edges, and the bins of both windows.
EDGES = 9
NUMBER_BINS = 2 * EDGES + 2
"""Below, at and between the edges; the last bin is of rows with a missing value or a text."""
_EDGES_FROM, NUMBERS_FROM = BODY, BODY + 16
_OTHER_BIN = NUMBERS_FROM + 2 * (NUMBER_BINS - 1)
# ... of categories: the most frequent ones (index + 1, count, error), and the bins.
TOP = 10
TOP_FROM = BODY
CATEGORY_BINS = 32
CATEGORIES_FROM = BODY + 3 * TOP


@kernel(inline=True)
def column_slot(table: I8, index: int) -> int:
    """The slot of a feature, or the empty slot where it belongs."""
    mask = table.shape[0] - 1
    at = (((index & _KEY_MASK) * 2654435761 & _KEY_MASK) >> 7) & mask
    while table[at] != 0 and table[at] & _KEY_MASK != index + 1:
        at = (at + 1) & mask
    return int(at)


@kernel
def enter_features(table: I8, indices: RO_I8, codes: RO_I8) -> None:
    """Enter features (n,) that the table does not have; the table has room."""
    for i in range(indices.shape[0]):
        index = int(indices[i])
        table[column_slot(table, index)] = codes[i] << CODE_SHIFT | (index + 1)


@kernel(inline=True)
def is_profiled(number: int) -> bool:
    """Whether a learned row is profiled: one of ONE_IN consecutive rows, chosen by a hash.

    A fixed one would be of the same device in a stream of ONE_IN devices that take turns.
    """
    if number < ALL_ROWS:
        return True
    mixed = (number // ONE_IN) * 2654435761 & _KEY_MASK
    mixed = (mixed ^ mixed >> 15) * 2246822519 & _KEY_MASK
    return (mixed >> 16) % ONE_IN == number % ONE_IN


@kernel(inner=True)
def _rescale(clock: F8, columns: int, counts: I8_2D, cells: F8_2D) -> None:
    """Divide all sums of weights by the weight of the last row."""
    short, long = 1.0 / clock[SHORT], 1.0 / clock[LONG]
    clock[SHORT] = 1.0
    clock[LONG] = 1.0
    clock[SHORT_TOTAL] *= short
    clock[LONG_TOTAL] *= long
    for column in range(columns):
        if counts[column, BINNED_ROW] == NOT_SEEN:
            continue
        cell = cells[column]
        cell[SHORT_START] *= short
        cell[SHORT_HELD] *= short
        cell[LONG_START] *= long
        cell[LONG_HELD] *= long
        is_category = counts[column, KIND] == CATEGORY
        first = CATEGORIES_FROM if is_category else NUMBERS_FROM
        bins = CATEGORY_BINS if is_category else NUMBER_BINS
        for at in range(first, first + 2 * bins, 2):
            cell[at] *= short
            cell[at + 1] *= long


@kernel(inner=True)
def _set_edges(cell: F8) -> None:
    """Sort the sample, and replace it by its deciles and empty bins."""
    for i in range(BODY + 1, BODY + SAMPLED):
        value = cell[i]
        at = i
        while at > BODY and cell[at - 1] > value:
            cell[at] = cell[at - 1]
            at -= 1
        cell[at] = value
    for j in range(EDGES):
        # The sample's place is at or after the edge's, so nothing is overwritten too early.
        cell[_EDGES_FROM + j] = cell[BODY + (j + 1) * SAMPLED // (EDGES + 1)]
    for at in range(_EDGES_FROM + EDGES, cell.shape[0]):
        cell[at] = 0.0


@kernel(inline=True)
def _add_to_bin(cell: F8, clock: F8, bin_: int) -> None:
    """Count the row in a bin, which has a sum for each window."""
    cell[bin_] += clock[SHORT]
    cell[bin_ + 1] += clock[LONG]


@kernel(inline=True)
def _bin_of(cell: F8, value: float) -> int:
    """The bin of a number. A branch for each edge is mispredicted too often."""
    bin_ = 0
    for j in range(EDGES):
        edge = cell[_EDGES_FROM + j]
        bin_ += int(edge < value) + int(edge <= value)
    return bin_


@kernel(inline=True)
def _add_number(count: I8, cell: F8, clock: F8, row: int, value: float) -> None:
    """Count a row with a number."""
    seen = count[COUNT] - count[OTHERS]
    if seen == 1:
        cell[LOWEST] = value
        cell[HIGHEST] = value
    apart = value - cell[MEAN]
    if apart != 0.0:
        cell[MEAN] += apart / seen
        cell[SQUARES] += apart * (value - cell[MEAN])
    # Many columns are 0 or 1: the same value again needs no comparison.
    is_same = value == cell[LAST]
    if not is_same:
        cell[LAST] = value
        cell[LOWEST] = min(cell[LOWEST], value)
        cell[HIGHEST] = max(cell[HIGHEST], value)
    if count[BINNED_ROW] == NOT_SEEN:
        cell[BODY + seen - 1] = value
        if seen == SAMPLED:
            _set_edges(cell)
            cell[SHORT_START] = clock[SHORT_TOTAL]
            cell[LONG_START] = clock[LONG_TOTAL]
            count[BINNED_ROW] = row + 1
            count[BIN] = _bin_of(cell, value)
        return
    if not is_same:
        count[BIN] = _bin_of(cell, value)
    _add_to_bin(cell, clock, NUMBERS_FROM + 2 * count[BIN])


@kernel(inline=True, inner=False)
def category_bin(index: int) -> int:
    """The bin of a value, by its feature."""
    return ((index & _KEY_MASK) * 2246822519 & _KEY_MASK) >> 27


@kernel(inline=True)
def _add_category(count: I8, cell: F8, clock: F8, row: int, index: int, is_first: bool) -> None:
    """Count a value of a row; `is_first` for the first one of the row."""
    if count[BINNED_ROW] == NOT_SEEN:
        count[BINNED_ROW] = row
        cell[SHORT_START] = clock[SHORT_TOTAL] - clock[SHORT]
        cell[LONG_START] = clock[LONG_TOTAL] - clock[LONG]
    if is_first:
        cell[SHORT_HELD] += clock[SHORT]
        cell[LONG_HELD] += clock[LONG]
    bin_ = category_bin(index)
    _add_to_bin(cell, clock, CATEGORIES_FROM + 2 * bin_)
    cell[LAST] = index
    # Space-Saving: a new value takes the place of the least frequent one, and its count as error.
    least = TOP_FROM
    for at in range(TOP_FROM, TOP_FROM + 3 * TOP, 3):
        if cell[at] == index + 1.0:
            cell[at + 1] += 1.0
            return
        if cell[at + 1] < cell[least + 1]:
            least = at
    cell[least] = index + 1.0
    cell[least + 2] = cell[least + 1]
    cell[least + 1] += 1.0


@kernel(apart=True)
def profile_rows(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    rejected: RO_B1,
    weights: RO_F8,
    row: int,
    is_numbered: bool,
    table: I8,
    clock: F8,
    sizes: I8,
    counts: I8_2D,
    cells: F8_2D,
    words: F8,
    texts: I8,
) -> int:
    """Count the learned rows from `row` on; rows that were rejected or have no weight do not count.

    indptr ... weights   a batch of n rows, and (n,) which were rejected
    is_numbered          whether every index is a column
    table                (power of 2,) features, see CODE_SHIFT; less than half full
    clock, sizes         (CLOCK,), (SIZES,)
    counts, cells        (room, COUNTS), (room, CELLS): one row a column
    words, texts         (room,) scratch: words of a column, and columns with words in this row

    Returns n, or the row at which to resume with more room for columns (numbered features only).
    """
    for i in range(row, indptr.shape[0] - 1):
        if rejected[i] or not weights[i] > 0.0:
            continue
        learned = sizes[LEARNED]
        if not is_profiled(learned):
            sizes[LEARNED] = learned + 1
            continue
        first, last = indptr[i], indptr[i + 1]
        if is_numbered and counts.shape[0] < MAX_COLUMNS:
            new = 0
            if sizes[COLUMNS] + last - first > counts.shape[0]:
                for at in range(first, last):
                    if table[column_slot(table, int(indices[at]))] == 0:
                        new += 1
            if sizes[COLUMNS] + new > counts.shape[0]:
                return i
        number = sizes[ROWS]
        sizes[ROWS] = number + 1
        sizes[LEARNED] = learned + 1
        if number % _RESCALED_ROWS == 0 and number > 0:
            _rescale(clock, sizes[COLUMNS], counts, cells)
        if number < ALL_ROWS:
            clock[SHORT] *= _SHORT_GROWTH
            clock[LONG] *= _LONG_GROWTH
        else:
            if number == ALL_ROWS:
                clock[SHORT] *= ONE_IN
                clock[LONG] *= ONE_IN
            clock[SHORT] *= _SHORT_GROWTH**ONE_IN
            clock[LONG] *= _LONG_GROWTH**ONE_IN
        clock[SHORT_TOTAL] += clock[SHORT]
        clock[LONG_TOTAL] += clock[LONG]
        with_words = 0
        for at in range(first, last):
            index = int(indices[at])
            slot = column_slot(table, index)
            if table[slot] == 0:
                if not is_numbered:
                    continue
                if sizes[COLUMNS] >= MAX_COLUMNS:
                    sizes[HAS_MORE] = 1
                    continue
                column = sizes[COLUMNS]
                sizes[COLUMNS] += 1
                counts[column, FIRST_ROW] = 0
                counts[column, LAST_ROW] = NOT_SEEN
                counts[column, BINNED_ROW] = NOT_SEEN
                counts[column, BIN] = NOT_SEEN
                counts[column, KIND] = NUMBER
                counts[column, FEATURE] = index
                table[slot] = (IS_NUMBER << ROLE_SHIFT | column) << CODE_SHIFT | (index + 1)
            code = table[slot] >> CODE_SHIFT
            role = code >> ROLE_SHIFT
            if role == NO_COLUMN:
                continue
            column = code & _COLUMN_MASK
            count = counts[column]
            cell = cells[column]
            if count[FIRST_ROW] == NOT_SEEN:
                count[FIRST_ROW] = number
            if role == IS_MISSING:
                count[MISSING] += 1
                is_number = count[KIND] == NUMBER or count[KIND] == BOOLEAN
                if is_number and count[BINNED_ROW] != NOT_SEEN:
                    _add_to_bin(cell, clock, _OTHER_BIN)
                continue
            is_first = count[LAST_ROW] != number
            if is_first:
                count[LAST_ROW] = number
                count[COUNT] += 1
            if role == IS_CATEGORY:
                _add_category(count, cell, clock, learned, index, is_first)
            elif role == IS_WORD:
                if is_first:
                    words[column] = 0.0
                    texts[with_words] = column
                    with_words += 1
                words[column] += values[at]
            elif is_first and role == IS_NUMBER:
                _add_number(count, cell, clock, learned, values[at])
            elif is_first and role == IS_OTHER:
                count[OTHERS] += 1
                if count[BINNED_ROW] != NOT_SEEN:
                    _add_to_bin(cell, clock, _OTHER_BIN)
        for at in range(with_words):
            column = texts[at]
            _add_number(counts[column], cells[column], clock, learned, words[column])
    return int(indptr.shape[0]) - 1
