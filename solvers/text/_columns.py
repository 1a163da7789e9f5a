"""A kernel that makes rows of the columns of a table."""

import numpy as np

from solvers._jit import (
    B1,
    F8,
    I4,
    I8,
    RO_F8,
    RO_F8_2D,
    RO_I4,
    RO_I8,
    Flags,
    Floats,
    Indices,
    Ints,
    b1,
    i8,
    kernel,
    types,
)
from solvers.text._read import finish_row

_MOST = 1e100
_I4_2D = types.Array(types.int32, 2, "C", readonly=True)


@kernel(
    i8(
        RO_F8_2D, RO_I4, RO_I8, _I4_2D, B1, RO_F8, RO_F8, b1, b1,
        I8, I4, F8, F8, F8, I8, I4, F8, I8, i8, i8, i8,
    )
)  # fmt: skip
def read_rows(
    columns: Floats,
    column_places: Indices,
    texts_of: Ints,
    text_places: Indices,
    usual: Flags,
    row_labels: Floats,
    row_weights: Floats,
    is_tidy: bool,
    sums: bool,
    indptr: Ints,
    indices: Indices,
    values: Floats,
    labels: Floats,
    weights: Floats,
    places: Ints,
    spare: Indices,
    held: Floats,
    at: Ints,
    first: int,
    begin: int,
    end: int,
) -> int:
    """Add rows of a table until one is not usual, or there is no other; 1 for the former.

    columns (d, k) float64         the value of each feature in rows `begin` to `end` of the table
    column_places (d,) int32       where it stands, but for texts
    texts_of (d,) int64            -1, or for texts the row of text_places that holds places
    text_places (texts, n) int32
    usual (n,) bool                rows with a null, no label, and the like are not
    row_labels, row_weights (n,)   as they are to stand in labels, weights
    is_tidy                        places increase, and there are no texts
    first                          the place of the table's first row among all

    The other arguments are those of `read_samples`; of `at` the places and the rows alone are read.
    """
    row = at[3]
    i = at[2] - first
    while i < end:
        if not usual[i]:
            break
        start = nnz = indptr[row]
        most = 0.0
        for j in range(columns.shape[0]):
            x = columns[j, i - begin]
            if x != 0.0:  # what is no number is none either
                t = texts_of[j]
                indices[nnz] = column_places[j] if t < 0 else text_places[t, i]
                values[nnz] = x
                nnz += 1
                most = max(most, abs(x)) if abs(x) <= _MOST else np.inf
        stop = nnz
        if not is_tidy:
            stop = finish_row(indices, values, start, nnz, sums, spare, held)
        if stop < 0 or most > _MOST:
            break
        labels[row] = row_labels[i]
        weights[row] = row_weights[i]
        places[row] = i + first
        row += 1
        i += 1
        indptr[row] = stop
    at[2], at[3] = i + first, row
    return int(i < end)


@kernel(i8(RO_F8, RO_I8, RO_I4, i8, i8, I8, I4, F8))
def read_numbers(
    numbers: Floats,
    starts: Ints,
    column_places: Indices,
    first: int,
    count: int,
    indptr: Ints,
    indices: Indices,
    values: Floats,
) -> int:
    """Make rows `first` to `first` + `count` of columns of numbers; how many are usual.

    It stops at a row that holds what is no number, or one beyond 1e100.

    numbers (m,) float64           column j of row i at numbers[starts[j] + i - first]
    column_places (d,) int32       increasing
    indptr, indices, values        of rows `first` on, with room for `count` times d entries
    """
    nnz = np.uint64(indptr[first])
    one = np.uint64(1)
    for i in range(count):
        is_usual = True
        for j in range(column_places.shape[0]):
            x = numbers[np.uint64(starts[j]) + np.uint64(i)]
            indices[nnz] = column_places[j]
            values[nnz] = x
            is_usual &= abs(x) <= _MOST  # no number is not, either
            if x != 0.0:
                nnz += one
        if not is_usual:
            return i
        indptr[first + i + 1] = int(nnz)
    return count


@kernel(b1(RO_F8, RO_I8, i8, i8, F8))
def read_full(numbers: Floats, starts: Ints, first: int, count: int, values: Floats) -> bool:
    """Make rows `first` to `first` + `count` of columns none of whose numbers is 0.

    False where one is, or is no number, or beyond 1e100; what was written is of no use then.

    numbers, starts   as in `read_numbers`
    values            of all rows, d each
    """
    width = np.uint64(starts.shape[0])
    at = np.uint64(first) * width
    for i in range(count):
        is_full = True
        for j in range(starts.shape[0]):
            x = numbers[np.uint64(starts[j]) + np.uint64(i)]
            values[at + np.uint64(j)] = x
            is_full &= 0.0 < abs(x) <= _MOST  # no number is not, either
        if not is_full:
            return False
        at += width
    return True
