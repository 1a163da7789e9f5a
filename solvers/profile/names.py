"""ColumnNames: the column of a feature, from the feature's name and the specification."""

from collections.abc import Mapping
from typing import Any

from dualstream.solvers.profile import kernels as k
from dualstream.solvers.rows.columns.spec import crossed_columns
from dualstream.solvers.spec_cache import derived_once

_KINDS = {
    "number": k.NUMBER,
    "boolean": k.BOOLEAN,
    "category": k.CATEGORY,
    "text": k.TEXT,
    "time": k.TIME,
}
_MISSING = "missing"
_SEPARATORS = frozenset("=:.")
# What follows the name of a declared column in the names of its features.
_SEPARATOR_OF = {k.CATEGORY: "=", k.TEXT: ":", k.TIME: "."}
_ROLE_OF = {k.CATEGORY: k.IS_CATEGORY, k.TEXT: k.IS_WORD, k.TIME: k.IS_TIME}


class ColumnNames:
    """Splits names of features: see `ColumnReader` for what a column gives.

    A declared column is the longest one whose name the feature begins with. Of other names, the
    column ends at the first `=`. Crosses belong to no column.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        columns = spec.get("columns") or {"types": {}, "missing_indicator": False}
        types = columns["types"].items()
        named = {name: one if isinstance(one, str) else one["kind"] for name, one in types}
        self.declared = {name: _KINDS[kind] for name, kind in named.items() if kind in _KINDS}
        """Column -> kind."""
        crosses = crossed_columns(columns, spec["crosses"]) if spec.get("crosses") else []
        self._crosses = {"*".join(names) for names in crosses}
        self._indicates: bool = columns["missing_indicator"]

    def stores_zeros(self, column: str) -> bool:
        """Whether a row without the column has a 0 there: missing values are then indicated."""
        return self._indicates and column in self.declared

    def column_of(self, name: str) -> tuple[str, int, int] | None:
        """Column, kind and role of a feature; None for a cross. The kind is UNKNOWN of a value
        that is missing in a column that is not declared."""
        if name in self.declared:
            return name, self.declared[name], k.IS_NUMBER
        if self.declared or self._crosses:
            for at in range(len(name) - 1, 0, -1):
                if name[at] in _SEPARATORS:
                    column, separator = name[:at], name[at]
                    if separator == "=" and column in self._crosses:
                        return None
                    kind = self.declared.get(column)
                    if kind is None:
                        continue
                    if separator == "=" and self._indicates and name[at + 1 :] == _MISSING:
                        return column, kind, k.IS_MISSING
                    if separator == _SEPARATOR_OF.get(kind):
                        return column, kind, _ROLE_OF[kind]
        column, separator, value = name.partition("=")
        if not separator:
            return column, k.NUMBER, k.IS_NUMBER
        if self._indicates and value == _MISSING:
            return column, k.UNKNOWN, k.IS_MISSING
        return column, k.CATEGORY, k.IS_CATEGORY


@derived_once
def column_names_of(spec: Mapping[str, Any]) -> ColumnNames:
    """The ColumnNames of a resolved specification."""
    return ColumnNames(spec)
