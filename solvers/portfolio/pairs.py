"""Pairs: crosses of two categories or small whole numbers, as features of members with `pairs`.

`pairs: true`: a category is an entry of value 1, and so is a boolean that is true. Two of them in
one row are one more feature of that row, at an index behind those of the features: a hash of both.

`pairs: [3, 5, 7]`: the values of two of these columns are one more feature, if both are whole
numbers from 0 to MOST_NUMBER. So hours and weekdays that are sent as numbers are combined, too.

A linear member cannot combine columns otherwise. No other member sees pairs: trees and networks err
more with them, because pairs are many and take the place of others in the tables of dense columns.
Linear members err more where no two columns act together. So members with pairs are besides the
others, and earn their shares.

A pair is a function of its row, so it has no state.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from dualstream.solvers.jit import F8, I4, I8, RO_F8, RO_I4, RO_I8, Floats, Ints, kernel
from dualstream.solvers.portfolio.spec import MAX_ONES, PAIR_CELLS
from dualstream.solvers.rows.batch import Batch

MOST = MAX_ONES * (MAX_ONES - 1) // 2
MOST_NUMBER = 31
_VALUES = MOST_NUMBER + 1
CATEGORIES = np.empty(0, np.int64)
"""In place of columns: pairs of categories."""


def with_pairs(batch: Batch, width: int, columns: Ints) -> Batch:
    """The rows with their pairs, at indices from `width` on in any order, each once.

    columns  (m,) whose values are combined, increasing, or CATEGORIES
    """
    n = len(batch.labels)
    room = len(batch.values) + n * MOST
    indptr = np.zeros(n + 1, np.int64)
    indices, values = np.empty(room, np.int32), np.empty(room)
    rows, out = (batch.indptr, batch.indices, batch.values), (indptr, indices, values)
    if len(columns):
        used = add_pairs_of_numbers(*rows, columns, width, *out)
    else:
        used = add_pairs(*rows, width, *out)
    return batch.with_rows(indptr, indices[:used], values[:used], width + PAIR_CELLS)


def number_columns(rows: Batch) -> list[int]:
    """The columns whose values a member may combine: all values are small whole numbers.

    Those with three or more different values; if all are at most MAX_ONES, those with fewer, too.
    Empty unless there are two columns, and three values of one.
    """
    columns, at = np.unique(rows.indices, return_inverse=True)
    values = rows.values
    is_whole = (values >= 1.0) & (values <= MOST_NUMBER) & (values == np.floor(values))
    entries, n = np.bincount(at, minlength=len(columns)), len(columns)
    cells = np.unique(_VALUES * at[is_whole] + values[is_whole].astype(np.int64))
    different = np.bincount(cells // _VALUES, minlength=n) + (entries < len(rows))
    all_whole = np.bincount(at, is_whole, n) == entries
    chosen, varied = columns[all_whole], columns[all_whole & (different >= 3)]
    if len(chosen) > MAX_ONES:
        chosen = varied
    is_useful = len(varied) > 0 and 2 <= len(chosen) <= MAX_ONES
    return [int(column) for column in chosen] if is_useful else []


def shared_with_both(
    row: Batch, width: int, columns: Ints, features: Ints, contributions: Floats
) -> tuple[float, Ints, Floats]:
    """Features of one row with pairs, and contributions (n,), with those of a pair half to each.

    The first number is that of pairs which this row lacks, see emit_row of column_table.py, or
    whose features are new.
    """
    of_row = features < width
    shared = dict(zip(features[of_row].tolist(), contributions[of_row].tolist(), strict=True))
    of_pairs = dict(zip(features[~of_row].tolist(), contributions[~of_row].tolist(), strict=True))
    for *pair, index in _pairs_of(row, width, columns.tolist()):
        # A new category can share the weight of another pair.
        if index in of_pairs and all(one in shared for one in pair):
            half = 0.5 * of_pairs.pop(index)
            for one in pair:
                shared[one] += half
    lacking = math.fsum(of_pairs.values())
    return lacking, np.array(list(shared), np.int64), np.array(list(shared.values()), np.float64)


def _pairs_of(row: Batch, width: int, columns: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """The two features and the index of each pair of one row."""
    values = dict(zip(row.indices.tolist(), row.values.tolist(), strict=True))
    if not columns:
        ones = [feature for feature, value in values.items() if value == 1.0]
        for one, two in combinations(ones[:MAX_ONES], 2):
            yield one, two, width + pair_cell(one, two)
        return
    for number, (one, two) in enumerate(combinations(columns, 2)):
        codes = [number_code(values.get(feature, 0.0)) for feature in (one, two)]
        if min(codes) >= 0:
            yield one, two, width + number_cell(number, *codes)


@kernel(inline=True, inner=False)
def pair_cell(first: int, second: int) -> int:
    """The cell of two features, by the finaliser of SplitMix64; see hashed_numbers.py."""
    z = (np.uint64(first) << np.uint64(32)) + np.uint64(second) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((z ^ (z >> np.uint64(31))) & np.uint64(PAIR_CELLS - 1))


@kernel(inline=True, inner=False)
def number_code(value: float) -> int:
    """A small whole number, or -1."""
    return int(value) if 0.0 <= value <= MOST_NUMBER and value == math.floor(value) else -1


@kernel(inline=True, inner=False)
def number_cell(pair: int, first: int, second: int) -> int:
    """The cell of two values of a pair of columns."""
    return (pair * _VALUES + first) * _VALUES + second


@kernel
def add_pairs_of_numbers(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    columns: RO_I8,
    width: int,
    out_indptr: I8,
    out_indices: I4,
    out_values: F8,
) -> int:
    """See add_pairs: the pairs of the values of these columns, at most MAX_ONES."""
    at, m = 0, columns.shape[0]
    for i in range(out_indptr.shape[0] - 1):
        begin, end = indptr[i], indptr[i + 1]
        for p in range(begin, end):
            out_indices[at], out_values[at] = indices[p], values[p]
            at += 1
        pair, p = 0, begin
        for a in range(m):
            while p < end and indices[p] < columns[a]:
                p += 1
            is_here = p < end and indices[p] == columns[a]
            first, q = number_code(values[p] if is_here else 0.0), p
            for b in range(a + 1, m):
                while q < end and indices[q] < columns[b]:
                    q += 1
                is_here = q < end and indices[q] == columns[b]
                second = number_code(values[q] if is_here else 0.0)
                if first >= 0 and second >= 0:
                    out_indices[at] = width + number_cell(pair, first, second)
                    out_values[at] = 1.0
                    at += 1
                pair += 1
        out_indptr[i + 1] = at
    return at


@kernel
def add_pairs(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    width: int,
    out_indptr: I8,
    out_indices: I4,
    out_values: F8,
) -> int:
    """Copy rows and add their pairs. Returns the number of entries.

    out_*  the rows, as in Batch, with room for MOST more entries in each
    """
    at = 0
    for i in range(out_indptr.shape[0] - 1):
        ones, end = 0, indptr[i]
        for p in range(indptr[i], indptr[i + 1]):
            out_indices[at], out_values[at] = indices[p], values[p]
            at += 1
            if values[p] == 1.0 and ones < MAX_ONES:
                ones, end = ones + 1, p + 1
        first = at
        for p in range(indptr[i], end):
            for q in range(p + 1, end if values[p] == 1.0 else p):
                if values[q] != 1.0:
                    continue
                index = width + pair_cell(int(indices[p]), int(indices[q]))
                is_new = True
                for earlier in range(first, at):
                    is_new = is_new and out_indices[earlier] != index
                if is_new:
                    out_indices[at], out_values[at] = index, 1.0
                    at += 1
        out_indptr[i + 1] = at
    return at
