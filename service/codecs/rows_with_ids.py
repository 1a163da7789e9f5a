"""Rows of models with a column of ids: as lists if they have ids, with the new names of each row.

Each row with an id becomes a part of its own in the request. The journal leaves out a row whose id
it knows, so each row brings the names of all its new features.
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from dualstream.service.codecs.parsed_rows import ListedRows, ParsedRows
from dualstream.solvers import Batch
from dualstream.solvers.jit import Ints


def listed_with_ids(parsed: ParsedRows, ids: dict[int, str]) -> ParsedRows:
    """The same rows, which kernels have read, as lists; `ids` are by row."""
    batch = parsed.rows
    assert isinstance(batch, Batch)
    names, ends = _names_by_row(batch, parsed.batch_names)
    rows = ListedRows(
        batch.indptr.tolist(),
        batch.indices.tolist(),
        batch.values.tolist(),
        parsed.labels,
        batch.weights.tolist(),
        batch.dim,
        names=names,
        name_ends=ends,
        ids=ids,
    )
    return replace(parsed, rows=rows, batch_names=())


def _names_by_row(
    batch: Batch, names: Sequence[tuple[int, str]]
) -> tuple[list[tuple[int, str]], list[int]]:
    """Names of each row's non-zero features that are in `names`, and their ends."""
    if not names:
        return [], []
    indices = _name_places(batch, names)
    ends = np.concatenate([[0], np.cumsum(indices >= 0)])[batch.indptr[1:]]
    return [names[index] for index in indices[indices >= 0].tolist()], ends.tolist()


_TABLE = 1 << 19
"""Most features of which a table is made for a body: 4 MB."""


def _name_places(batch: Batch, names: Sequence[tuple[int, str]]) -> Ints:
    """Of each entry of the batch the place of its name in `names`; -1 without one."""
    indices = np.array([index for index, _ in names], np.int64)
    if batch.dim <= _TABLE:
        table = np.full(batch.dim, -1)
        table[indices] = np.arange(len(names))
        return table[batch.indices]
    by_index = np.argsort(indices)
    at = np.searchsorted(indices[by_index], batch.indices)
    at[at == len(names)] = 0
    return np.where(indices[by_index[at]] == batch.indices, by_index[at], -1)
