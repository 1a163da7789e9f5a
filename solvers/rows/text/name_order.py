"""Order of a body's new names by the entries of its rows."""

from dualstream.solvers.jit import I4, I8, RO_I4, RO_I8, kernel
from dualstream.solvers.rows.text.tokens import slot_of


@kernel
def order_by_entries(entries: RO_I4, indices: RO_I8, table: I4, numbers: I8, order: I8) -> int:
    """Numbers of the names that entries have, in the order of their first entries; how many.

    entries  (m,) int32   indices of features
    indices  (n,) int64   the index of each name, no two equal
    table (2^k,) int32, numbers (2^k,) int64   zeros, for more than n
    order    (n,) int64   the result
    """
    for name in range(indices.shape[0]):
        slot = slot_of(table, indices[name])
        table[slot] = ~indices[name]
        numbers[slot] = name + 1
    count = 0
    for entry in range(entries.shape[0]):
        if count == indices.shape[0]:
            break
        slot = slot_of(table, entries[entry])
        if numbers[slot] > 0:
            order[count] = numbers[slot] - 1
            numbers[slot] = 0
            count += 1
    return count
