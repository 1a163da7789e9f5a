"""Rows with ids that kernels have read: as lists, with the new names of each row.

Each row with an id becomes a part of its own in the request.
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from dualstream.service.codecs.parsed_rows import ListedRows, ParsedRows
from dualstream.solvers import Batch
from dualstream.solvers.jit import Ints


def listed_with_ids(parsed: ParsedRows, ids: dict[int, str], name_ends: Ints) -> ParsedRows:
    """The same rows as lists; `ids` are by row.

    name_ends  (rows,)   end of the names in `batch_names` that each row was the first to have
    """
    batch = parsed.rows
    assert isinstance(batch, Batch)
    names, ends = _names_by_row(batch, parsed.batch_names, name_ends)
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
    batch: Batch, names: Sequence[tuple[int, str]], name_ends: Ints
) -> tuple[list[tuple[int, str]], list[int]]:
    """New names of each row, one row after the other, and their ends.

    A row brings the names of all its new features. The journal may leave out an earlier row that
    has them, too, because it knows the id of that row.
    """
    if not names:
        return [], []
    first_rows = np.searchsorted(name_ends, np.arange(len(names)), side="right")
    indices = np.array([index for index, _ in names], np.int32)
    by_index = np.argsort(indices)
    at = np.searchsorted(indices[by_index], batch.indices)
    number = by_index[np.minimum(at, len(names) - 1)]
    row = np.repeat(np.arange(len(batch)), np.diff(batch.indptr))
    again = (indices[number] == batch.indices) & (first_rows[number] < row)
    rows = np.concatenate([first_rows, row[again]])
    numbers = np.concatenate([np.arange(len(names)), number[again]])
    numbers = numbers[np.argsort(rows, kind="stable")]
    ends = np.cumsum(np.bincount(rows, minlength=len(batch)))
    return [names[number] for number in numbers.tolist()], ends.tolist()
