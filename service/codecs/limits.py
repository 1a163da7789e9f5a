"""Limits of rows per request and non-zeros per row, checked after parsing.

The checks run before rows are journalled. Journalled rows are applied without limits, so that
processes with other settings reach the same state.
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from dualstream.service.codecs.parsed_rows import ParsedRows
from dualstream.service.codecs.row_schema import RowSchema, too_many_nonzeros
from dualstream.solvers import Batch
from dualstream.wire.problems import Problem, RowError


def check_rows(count: int, limit: int | None) -> None:
    """Raise Problem 413 if a request has more rows, valid or not, than `limit`."""
    if limit is not None and count > limit:
        detail = f"the request has more than {limit} rows; split it into smaller requests"
        raise Problem(413, "too-many-rows", detail)


def without_long_rows(schema: RowSchema, parsed: ParsedRows) -> ParsedRows:
    """Move rows with too many non-zeros to the errors."""
    rows, limit = parsed.rows, schema.limits.nonzeros
    # RowsBuilder has checked listed rows.
    if not isinstance(rows, Batch) or len(rows.indices) <= limit:
        return parsed
    sizes = np.diff(rows.indptr)
    if int(sizes.max()) <= limit:
        return parsed
    row_indices = np.asarray(parsed.row_indices)
    too_long = [
        RowError(int(row_indices[row]), "/x", too_many_nonzeros(int(sizes[row]), limit))
        for row in np.flatnonzero(sizes > limit).tolist()
    ]
    good = np.flatnonzero(sizes <= limit)
    kept = rows.take(good)
    return replace(
        parsed,
        rows=kept,
        row_indices=row_indices[good].tolist(),
        errors=sorted([*parsed.errors, *too_long], key=lambda error: error.index),
        batch_names=_names_of(kept, parsed.batch_names),
    )


def _names_of(rows: Batch, names: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """Names of features in these rows; the names of refused rows are not journalled."""
    indices = set(rows.indices.tolist()) if names else set()
    return [pair for pair in names if pair[0] in indices]
