"""How many rows a request may hold, and how many non-zeros a row: checked of what was read.

Whatever the format, before anything is journalled: what stands in the journal is applied by
everybody, whatever limits are set there.
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from dualstream.service.codecs.parsed_rows import ParsedRows
from dualstream.service.codecs.row_schema import RowSchema, too_many_nonzeros
from dualstream.solvers import Batch
from dualstream.wire.problems import Problem, RowError


def check_rows(count: int, most: int | None) -> None:
    """Raise Problem 413 for more rows, bad ones counted, than a request may hold."""
    if most is not None and count > most:
        detail = f"the request holds more than {most} rows; send them in several requests"
        raise Problem(413, "too-many-rows", detail)


def without_long_rows(door: RowSchema, intake: ParsedRows) -> ParsedRows:
    """The rows that are not too long; those that are stand among the errors."""
    rows, most = intake.rows, door.limits.nonzeros
    # Listed rows were checked one by one.
    if not isinstance(rows, Batch) or len(rows.indices) <= most:
        return intake
    sizes = np.diff(rows.indptr)
    if int(sizes.max()) <= most:
        return intake
    places = np.asarray(intake.places)
    too_long = [
        RowError(int(places[row]), "/x", too_many_nonzeros(int(sizes[row]), most))
        for row in np.flatnonzero(sizes > most).tolist()
    ]
    good = np.flatnonzero(sizes <= most)
    kept = rows.take(good)
    return replace(
        intake,
        rows=kept,
        places=places[good].tolist(),
        errors=sorted([*intake.errors, *too_long], key=lambda error: error.index),
        names_beside=_names_of(kept, intake.names_beside),
    )


def _names_of(rows: Batch, names: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """Names of features that these rows have: those of others would stay in the journal."""
    places = set(rows.indices.tolist()) if names else set()
    return [pair for pair in names if pair[0] in places]
