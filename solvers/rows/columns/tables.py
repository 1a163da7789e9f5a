"""Rows of tables as JSON has them: of DataFrames, Arrow tables and lists of dicts.

Neither pandas nor pyarrow is imported here, except by a caller that passes an Arrow table.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

_PLAIN = frozenset({float, int, str, bool, type(None)})


def rows_of(table: Any) -> Iterator[dict[str, Any]]:
    """Rows of a pandas DataFrame, an Arrow table or record batch, or an iterable of dicts.

    Raises TypeError for anything else, and ValueError for two columns of one name.
    """
    if hasattr(table, "to_pylist") and hasattr(table, "schema"):
        _names_of(table.schema.names)
        for row in in_microseconds(table).to_pylist():
            yield plain_row(row)
    elif hasattr(table, "itertuples"):
        names = _names_of(table.columns)
        for values in table.itertuples(index=False, name=None):
            yield dict(zip(names, map(plain, values), strict=True))
    elif isinstance(table, Iterable) and not isinstance(table, str | bytes | Mapping):
        for row in table:
            if not isinstance(row, Mapping):
                raise TypeError(f"{_WANTED}; got a row that is a {type(row).__name__}")
            yield plain_row(row)
    else:
        raise TypeError(f"{_WANTED}; got a {type(table).__name__}")


_WANTED = "with `columns`, rows must be a DataFrame, an Arrow table or a list of dicts"


def plain_row(row: Mapping[Any, Any]) -> dict[str, Any]:
    """A row of names and values as JSON has them. Raises ValueError for a repeated name."""
    return dict(zip(_names_of(row), map(plain, row.values()), strict=True))


def plain(value: Any) -> Any:
    """A value as JSON has it: times and dates as ISO 8601, decimals as numbers, NA as None.

    A NaN stays one. A value that JSON does not have is returned unchanged.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if kind == "M" and getattr(value, "ndim", 1) == 0:  # a time of NumPy
        text = str(value)
        return None if text == "NaT" else text
    # `tolist` turns times into integers, so arrays of times stay as they are.
    return plain(value.tolist()) if kind not in ("", "M", "m") else value


def in_microseconds(table: Any) -> Any:
    """An Arrow table or record batch whose times Python's datetime holds: no nanoseconds."""
    import pyarrow as pa

    columns = [
        column.cast(pa.timestamp("us", column.type.tz), safe=False)
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns"
        else column
        for column in table.columns
    ]
    return type(table).from_arrays(columns, table.schema.names)


def _names_of(names: Iterable[Any]) -> list[str]:
    """Names of columns as texts. Raises ValueError if two are equal."""
    columns = list(map(str, names))
    if len(set(columns)) < len(columns):
        twice = next(name for name in columns if columns.count(name) > 1)
        raise ValueError(f"two columns have the name {twice!r:.80}; rename one")
    return columns
