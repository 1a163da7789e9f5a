"""Columns of a table for peers, from rows that are encoded by `columns`: numbers and categories.

The rows are encoded once more with an indicator for missing values, as 0 is a value.
A number and each part of a time is a column, a boolean one of 0 and 1, a category one of codes.
Free text, lists, and columns without a declared type do not fit into a table.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers import Batch, resolve_spec
from dualstream.solvers.rows.columns.spec import name_of, parts_of

MAX_WIDTH = 1_000
"""Columns of a table; wider rows are given to peers as they are encoded."""
MAX_CATEGORIES = 100_000
"""Categories of a column with codes of their own; later ones share one."""
_BITS = 26
_NOTHING, _NUMBER, _CATEGORY, _MISSING = range(4)


def table_spec(spec: Mapping[str, Any]) -> dict[str, Any] | None:
    """The specification that encodes rows for a table; None if they do not fit into one."""
    columns = spec["columns"]
    kinds = [name_of(kind) for kind in columns["types"].values()]
    if not any(kind != "ignore" for kind in kinds) or "text" in kinds:
        return None
    if columns["unknown"] == "infer":
        return None
    fields = {"missing_indicator": True, "unknown": "ignore"}
    wanted = {"task": spec["task"], "features": {"kind": "hashed", "bits": _BITS}}
    if spec.get("labels"):
        wanted["labels"] = spec["labels"]
    return resolve_spec(wanted | {"columns": {**columns, **fields}})


class TableColumns:
    """Turns encoded rows into rows of the table.

    names       of its columns
    categories  of each column, whether it has codes of categories
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.names: list[str] = []
        self.categories: list[bool] = []
        self.fits = True
        """False as soon as a row has two categories in one column."""
        self._types = {
            name: kind
            for name, kind in spec["columns"]["types"].items()
            if name_of(kind) != "ignore"
        }
        self._at: dict[str, int] = {}
        for name, kind in self._types.items():
            for column, is_category in _columns_of(name, kind):
                self._at[column] = len(self.names)
                self.names.append(column)
                self.categories.append(is_category)
        self._codes: list[dict[str, int]] = [{} for _ in self.names]
        self._indices = np.empty(0, np.int64)
        """Encoded features, ascending; of each what it is, and its column and code."""
        self._roles = np.empty((0, 3), np.int64)

    @property
    def width(self) -> int:
        return len(self.names)

    def texts_of(self, column: int) -> list[str]:
        """Categories of a column, by their codes."""
        return list(self._codes[column])

    def learn_names(self, names: Iterable[tuple[int, str]]) -> None:
        """Register features by their index and name."""
        new = {index: self._role(name) for index, name in names}
        for index in self._indices.tolist():
            new.pop(index, None)
        if new:
            indices = np.concatenate([self._indices, np.array(list(new), np.int64)])
            order = np.argsort(indices)
            roles = np.array(list(new.values()), np.int64)
            self._indices = indices[order]
            self._roles = np.concatenate([self._roles, roles])[order]

    def table(self, batch: Batch) -> npt.NDArray[np.float64]:
        """(n, width): numbers, 0 and 1, codes; NaN for a missing value."""
        n = len(batch)
        table = np.zeros((n, self.width), np.float64)
        table[:, self.categories] = np.nan
        rows = np.repeat(np.arange(n), np.diff(batch.indptr))
        at = np.searchsorted(self._indices, batch.indices)
        at = np.minimum(at, max(len(self._indices) - 1, 0))
        if not len(self._indices):
            return table
        roles = self._roles[at]
        roles[self._indices[at] != batch.indices] = _NOTHING
        kinds, columns, codes = roles.T
        for kind, values in ((_NUMBER, batch.values), (_CATEGORY, codes), (_MISSING, None)):
            entries = kinds == kind
            where = rows[entries], columns[entries]
            table[where] = np.nan if values is None else values[entries]
            if kind == _CATEGORY:
                cells = where[0] * self.width + where[1]
                self.fits &= len(np.unique(cells)) == len(cells)
        self._blank_times(table, rows[kinds == _MISSING], columns[kinds == _MISSING])
        return table

    def _blank_times(self, table: npt.NDArray[np.float64], rows: Any, columns: Any) -> None:
        """A missing time is missing in all of its parts."""
        for name, kind in self._types.items():
            parts = [self._at[column] for column, _ in _columns_of(name, kind)]
            for part in parts[1:]:
                table[rows[columns == parts[0]], part] = np.nan

    def _role(self, name: str) -> tuple[int, int, int]:
        """What a feature is, its column, and its code."""
        if name in self._at and not self.categories[self._at[name]]:
            return _NUMBER, self._at[name], 0
        for end in (at for at, letter in enumerate(name) if letter == "="):
            column, text = name[:end], name[end + 1 :]
            if column in self._at and self.categories[self._at[column]]:
                at = self._at[column]
                codes = self._codes[at]
                if text not in codes and len(codes) >= MAX_CATEGORIES:
                    text = ""
                return _CATEGORY, at, codes.setdefault(text, len(codes))
            if column in self._types and text == "missing":
                return _MISSING, self._at[_columns_of(column, self._types[column])[0][0]], 0
        return _NOTHING, 0, 0


def _columns_of(name: str, kind: Any) -> list[tuple[str, bool]]:
    """Columns that a column of the file gives, and whether each has categories."""
    if name_of(kind) != "time":
        return [(name, name_of(kind) == "category")]
    columns = []
    for part in parts_of(kind):
        full = f"{name}.{part}"
        is_cycle = part not in ("weekday", "age")
        columns += [(f"{full}.sin", False), (f"{full}.cos", False)] if is_cycle else []
        columns += [] if is_cycle else [(full, part == "weekday")]
    return sorted(columns, key=lambda one: one[1])
