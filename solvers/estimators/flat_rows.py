"""FlatRows: rows of a table by `columns`, `crosses` and `history`, as the server reads flat rows.

The estimator gets labels apart from the rows, so `columns` names no label, id or weight here. Times
of a history may be in the future: an estimator has no clock.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dualstream.solvers.estimators.base import value_errors
from dualstream.solvers.history.spec import column_names
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.columns import BadColumn, ColumnReader
from dualstream.solvers.rows.columns.inputs import inputs_of
from dualstream.solvers.rows.columns.reader import ColumnRow
from dualstream.solvers.rows.columns.tables import rows_of
from dualstream.solvers.rows.hashing import NameIndices, hash_row
from dualstream.solvers.rows.text.tokens import LARGEST
from dualstream.solvers.spec.validate import resolve_spec
from dualstream.wire.text_values import EXACT, TOO_LONG

_ROLES = ("label", "id", "weight")
_LONGEST = 1024
"""Maximum characters of a name and of a category, as in the server."""


class FlatRows:
    """Reader of tables, for rows of width 2^bits and the inputs of the history.

    Raises ValueError for an invalid field, and for a label, an id or a weight among the columns.
    """

    def __init__(
        self, columns: Mapping[str, Any], crosses: Any, bits: int, history: Any = None
    ) -> None:
        self._given = columns, crosses, bits, history
        for role in _ROLES:
            if role in columns:
                raise ValueError(
                    f"columns must not hold {role!r}: X has the features, y has the labels"
                )
        spec: dict[str, Any] = {"features": {"kind": "hashed", "bits": bits}}
        with value_errors():
            spec = resolve_spec(spec | {"columns": columns, "crosses": crosses, "history": history})
        inputs, computed = inputs_of(spec), column_names(spec.get("history") or (), spec["task"])
        self._width = inputs.row_width
        self._reader = ColumnReader(spec["columns"], spec["crosses"], inputs, computed)
        self._name_indices = NameIndices(bits)

    def __reduce__(self) -> tuple[Any, ...]:
        return FlatRows, self._given

    def batch(self, table: Any) -> Batch:
        """Rows of a table without labels, see `rows_of`. Raises ValueError for a bad row."""
        indptr, indices, values = [0], list[int](), list[float]()
        for number, row in enumerate(rows_of(table)):
            try:
                read = self._read(row)
                hashed = hash_row(read.features, self._name_indices)
            except BadColumn as bad:
                raise ValueError(f"row {number}: {bad.reason}") from None
            inputs = sorted(read.inputs)
            indices += hashed[0] + inputs
            values += hashed[1] + [read.inputs[at] for at in inputs]
            indptr.append(len(indices))
        n = len(indptr) - 1
        with value_errors():
            return Batch(
                np.array(indptr, np.int64),
                np.array(indices, np.int32),
                np.array(values, np.float64),
                np.full(n, Batch.UNLABELLED),
                np.ones(n),
                self._width,
            )

    def _read(self, row: dict[str, Any]) -> ColumnRow:
        reader = self._reader
        for role, name in zip(_ROLES, (reader.label, reader.id, reader.weight), strict=True):
            if name is not None and name in row:
                advice = "drop it or rename it"
                if role != "label":
                    advice = "give it a type in `types` of `columns`, or add it to `ignore`"
                reason = f"the server takes column {name!r} for the {role} of a row; {advice}"
                raise BadColumn(name, reason)
        read = reader.read(row)
        for name, value in read.features.items():
            if (why := _why_bad(value)) is not None:
                raise BadColumn(name, f"column {name!r:.80}: {why}")
        return read


def _why_bad(value: float | bool | str) -> str | None:
    """Why the server refuses a feature's value, or None."""
    if isinstance(value, str):
        return f"a text has at most {_LONGEST} characters" if len(value) > _LONGEST else None
    if not -LARGEST <= value <= LARGEST:
        return f"the number must be in [-1e100, 1e100], got {value!r:.80}"
    if isinstance(value, int) and not -EXACT <= value <= EXACT:
        return f"the integer {value} is {TOO_LONG}"
    return None
