"""Pairs: crosses of two categories, as features of members that have `pairs`.

A category is an entry of value 1, and so is a boolean that is true. Two of them in one row are one
more feature of that row, at an index behind those of the features: a hash of both. A linear member
cannot combine columns otherwise. No other member sees pairs: trees and networks err more with
them, because pairs are many and take the place of others in the tables of dense columns. Linear
members err more where no two categories act together. So members with pairs are besides the same
members without, and earn their shares.

A pair is a function of its row, so it has no state.
"""

import math
from itertools import combinations

import numpy as np

from dualstream.solvers.jit import F8, I4, I8, RO_F8, RO_I4, RO_I8, Floats, Ints, kernel
from dualstream.solvers.portfolio.spec import MAX_ONES, PAIR_CELLS
from dualstream.solvers.rows.batch import Batch

MOST = MAX_ONES * (MAX_ONES - 1) // 2


def with_pairs(batch: Batch, width: int) -> Batch:
    """The rows with their pairs, at indices from `width` on in any order, each once."""
    n = len(batch.labels)
    room = len(batch.values) + n * MOST
    indptr = np.zeros(n + 1, np.int64)
    indices, values = np.empty(room, np.int32), np.empty(room)
    used = add_pairs(batch.indptr, batch.indices, batch.values, width, indptr, indices, values)
    return batch.with_rows(indptr, indices[:used], values[:used], width + PAIR_CELLS)


def shared_with_both(
    row: Batch, width: int, features: Ints, contributions: Floats
) -> tuple[float, Ints, Floats]:
    """Features of one row with pairs, and contributions (n,), with those of a pair half to each.

    The first number is that of pairs which this row lacks, see emit_row of column_table.py, or
    whose features are new.
    """
    at = {feature: column for column, feature in enumerate(features.tolist())}
    shared = contributions.copy()
    ones = row.indices[row.values == 1.0][:MAX_ONES].tolist()
    for pair in combinations(ones, 2):
        index = width + pair_cell(*pair)
        # A new category can share the weight of another pair.
        if all(one in at for one in (*pair, index)):
            for one in pair:
                shared[at[one]] += 0.5 * contributions[at[index]]
            del at[index]
    lacking = math.fsum(contributions[at[feature]] for feature in at if feature >= width)
    of_row = features < width
    return lacking, features[of_row], shared[of_row]


@kernel(inline=True, inner=False)
def pair_cell(first: int, second: int) -> int:
    """The cell of two features, by the finaliser of SplitMix64; see hashed_numbers.py."""
    z = (np.uint64(first) << np.uint64(32)) + np.uint64(second) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((z ^ (z >> np.uint64(31))) & np.uint64(PAIR_CELLS - 1))


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
