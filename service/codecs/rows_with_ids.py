"""Rows of models with a column of ids: as lists if they have ids, with the new names of each row.

Each row with an id becomes a part of its own in the request. The journal leaves out a row whose id
it knows, so each row brings the names of all its new features. They are in the order of their
indices: kernels sort a row by them, and the state must not depend on the reader.
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from dualstream.service.codecs.parsed_rows import ListedRows, ParsedRows
from dualstream.solvers import Batch


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


def with_names_by_index(parsed: ParsedRows) -> ParsedRows:
    """The same rows without ids, with new names in the order of the rows and their indices."""
    batch = parsed.rows
    assert isinstance(batch, Batch)
    names, _ = _names_by_row(batch, parsed.batch_names)
    return replace(parsed, batch_names=list(dict.fromkeys(names)))


def _names_by_row(
    batch: Batch, names: Sequence[tuple[int, str]]
) -> tuple[list[tuple[int, str]], list[int]]:
    """Names of each row's non-zero features that are in `names`, and their ends."""
    if not names:
        return [], []
    by_index = sorted(names)
    indices = np.array([index for index, _ in by_index], np.int32)
    at = np.searchsorted(indices, batch.indices)
    at[at == len(names)] = 0
    is_new = indices[at] == batch.indices
    ends = np.concatenate([[0], np.cumsum(is_new)])[batch.indptr[1:]]
    return [by_index[k] for k in at[is_new].tolist()], ends.tolist()
