"""Conversion of rows (lists, dicts, NumPy, pandas, SciPy) to samples and NDJSON bodies.

A sample is {"x": ..., "y": ..., "weight": ..., "id": ...}. Rows are lists of numbers, dicts of
features by name, a NumPy array, a pandas DataFrame or a scipy.sparse matrix. None of these
libraries is imported here. Missing values (NaN, None, NA) are sent as null; the server refuses such
rows. Infinite numbers, and names that are repeated or no texts, raise BadInput.
"""

import sys
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from math import isinf, nan
from numbers import Number
from typing import Any, NamedTuple, TypeGuard

import msgspec

from dualstream.client.errors import BadInput

Sample = Mapping[str, Any]
ROWS_PER_REQUEST = 1000
# The server splits a longer body; it learns up to 1 MiB in one append.
LARGEST_BODY = 1024 * 1024
_END = object()
_PLAIN = frozenset({float, int, str, bool, type(None)})
_TEXT = frozenset({str})
_ROWS = frozenset({list, tuple})
_CANNOT_BE_WRITTEN = (TypeError, UnicodeEncodeError, OverflowError)
_encoder = msgspec.json.Encoder(decimal_format="number")


# -- rows and samples ------------------------------------------------------------------------------


def samples_of(
    x: Any,
    y: Any = None,
    weight: Any = None,
    ids: Any = None,
    names: Sequence[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Samples of many rows; `y`, `weight` and `ids` have one value per row.

    `names` are the names of the columns of an array or a matrix; by default columns are indices
    from 1. With a DataFrame, `y`, `weight` and `ids` may name columns, which are then not features.
    Raises BadInput if the lengths differ.
    """
    others = {"y": y, "weight": weight, "id": ids}
    frame = _loaded("pandas", "DataFrame")
    if frame and isinstance(x, frame):
        x, others = _without_columns(x, others)
    rows = rows_of(x, names)
    columns = {name: _column(name, values) for name, values in others.items() if values is not None}
    iterators = [iter(column) for column in columns.values()]
    for number, row in enumerate(rows):
        sample = {"x": row}
        for name, values in zip(columns, iterators, strict=True):
            value = next(values, _END)
            if value is _END:
                raise BadInput(f"{name!r} has {number} values, but there are more rows")
            if value is not None or name == "y":
                sample[name] = value
        yield sample
    for name, values in zip(columns, iterators, strict=True):
        if next(values, _END) is not _END:
            raise BadInput(f"{name!r} has more values than there are rows")


def _column(name: str, values: Any) -> Any:
    """One value per row. Raises BadInput."""
    found = listed(values)
    if isinstance(found, str | bytes | Mapping) or not isinstance(found, Iterable):
        raise BadInput(f"{name!r} must have one value per row, got {values!r:.60}")
    return found


def is_single(x: Any) -> bool:
    """Is this one row: an object of features, or numbers?"""
    if isinstance(x, Mapping):
        return True
    array = _loaded("numpy", "ndarray")
    if array and isinstance(x, array):
        return bool(x.ndim == 1)
    if isinstance(x, list | tuple):
        return bool(x) and all(isinstance(value, Number) for value in islice(x, 1))
    return False


def row_of(x: Any, names: Sequence[str] | None = None) -> Any:
    """One row of the API. The index of a pandas Series has the names, if they are texts."""
    if _is_mapping(x):
        return x
    series = _loaded("pandas", "Series")
    if series and isinstance(x, series):
        labels = list(x.index)
        if names is None and labels and all(isinstance(label, str) for label in labels):
            names = checked_names(labels, "label of the Series")
        return _named(list(x) if _holds_times(x) else x.tolist(), names)
    return _named(listed(x), names)


def rows_of(x: Any, names: Sequence[str] | None = None) -> Iterator[Any]:
    """Rows of the API from a table, a matrix or an iterable."""
    if names is not None:
        names = checked_names(names, "name")
    frame = _loaded("pandas", "DataFrame")
    if frame and isinstance(x, frame):
        return _of_frame(x, names)
    if (sparse := sys.modules.get("scipy.sparse")) is not None and sparse.issparse(x):
        return _of_sparse(x, names)
    _check_table(x)
    if isinstance(x, str | bytes) or not isinstance(x, Iterable):
        raise BadInput(
            f"rows must be lists, dicts, an array, a DataFrame or a matrix, got {x!r:.60}"
        )
    return (row_of(row, names) for row in x)


def checked_names(names: Sequence[Any], what: str) -> Sequence[str]:
    """The names as they are. Raises BadInput if one is no text or is repeated."""
    seen: set[Any] = set()
    for name in names:
        try:
            text = _name(name)
        except TypeError as wrong:
            raise BadInput(str(wrong)) from None
        if text in seen:
            raise BadInput(f"the {what} {text!r} is repeated; every feature needs its own name")
        seen.add(text)
    return names


def _check_table(x: Any) -> None:
    """Raise BadInput for a Series of values, or an array of other than 1 or 2 dimensions."""
    series, array = _loaded("pandas", "Series"), _loaded("numpy", "ndarray")
    if series and isinstance(x, series) and x.dtype != object:
        raise BadInput(
            "a Series is no table of rows; send series.to_dict() as one row, or series.to_frame()"
        )
    if array and isinstance(x, array) and not 1 <= x.ndim <= 2:
        raise BadInput(f"rows must be an array of 2 dimensions, got {x.ndim}")


def sample(row: Any, y: Any, weight: Any, sample_id: Any) -> dict[str, Any]:
    """One sample of the API."""
    fields = {"x": row, "y": y}
    others = {"weight": weight, "id": sample_id}
    return fields | {name: value for name, value in others.items() if value is not None}


def sample_of(given: Any) -> Sample:
    """A sample of a stream: a sample of the API, or a pair (x, y)."""
    if _is_mapping(given) and "x" in given:
        return given
    if isinstance(given, tuple) and len(given) == 2:
        return {"x": row_of(given[0]), "y": given[1]}
    raise BadInput(f'a sample must be {{"x": ..., "y": ...}} or a pair (x, y), got {given!r:.60}')


def _is_mapping(x: Any) -> TypeGuard[Mapping[Any, Any]]:
    # Most rows are dicts; an exact type check is much faster than isinstance with an ABC.
    return type(x) is dict or isinstance(x, Mapping)


def _of_frame(frame: Any, names: Sequence[str] | None) -> Iterator[Any]:
    """Rows of a DataFrame: text column labels are feature names; otherwise numbered."""
    labels = list(frame.columns)
    if names is None:
        _check_columns(frame)
    if names is None and all(isinstance(label, str) for label in labels):
        names = labels
    # Column by column, because each has its own type.
    columns = [frame.iloc[:, place].tolist() for place in range(len(labels))]
    if not columns:
        return iter([{}] * len(frame))
    return (_named(list(row), names) for row in zip(*columns, strict=True))


def _check_columns(frame: Any) -> None:
    """Raise BadInput if two columns have one label."""
    if not frame.columns.is_unique:
        repeated = frame.columns[frame.columns.duplicated()][0]
        raise BadInput(f"the column {repeated!r} is repeated; every feature needs its own name")


def _of_sparse(matrix: Any, names: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    """Rows of a sparse matrix. Entries with the same place are added, as in SciPy."""
    if len(matrix.shape) != 2:
        raise BadInput(
            f"rows must be a sparse matrix of 2 dimensions, got {len(matrix.shape)};"
            " reshape one row to (1, n)"
        )
    return _of_csr(matrix.tocsr(), names)


def _of_csr(rows: Any, names: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    called = names if names is not None else range(1, rows.shape[1] + 1)
    if len(called) != rows.shape[1]:
        raise BadInput(f"the matrix has {rows.shape[1]} columns, but there are {len(called)} names")
    for row in range(rows.shape[0]):
        here = slice(rows.indptr[row], rows.indptr[row + 1])
        places, values = rows.indices[here].tolist(), rows.data[here].tolist()
        yield {str(called[place]): value for place, value in zip(places, values, strict=True)}


def _named(values: list[Any], names: Sequence[str] | None) -> Any:
    if names is None:
        return values
    if len(names) != len(values):
        raise BadInput(f"a row has {len(values)} values, but there are {len(names)} names")
    return dict(zip(names, values, strict=True))


def _without_columns(frame: Any, others: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The feature columns, and the columns that `y`, `weight` and `ids` name."""
    _check_columns(frame)
    called = {name: column for name, column in others.items() if isinstance(column, str)}
    for name, column in called.items():
        if column not in frame.columns:
            raise BadInput(f"the table has no column {column!r} (argument {name!r})")
    found = {name: frame[column] for name, column in called.items()}
    return frame.drop(columns=list(called.values())), others | found


def _loaded(module: str, name: str) -> Any:
    """A class of a library, if that library is imported in this process."""
    return getattr(sys.modules.get(module), name, None)


# -- values ----------------------------------------------------------------------------------------


def sample_line(sample: Mapping[str, Any], row: int = 0) -> bytes:
    """A sample as JSON. Raises BadInput, which names the row, for an invalid sample."""
    try:
        fields = sample if _is_plain(sample) else _plain_sample(sample)
    except TypeError as wrong:
        raise BadInput(f"row {row}: {wrong}") from None
    try:
        line = _encoder.encode(fields)
        if b"null" in line:  # as which an infinite number is written, too
            _check_finite(fields, row)
        return line
    except _CANNOT_BE_WRITTEN as wrong:
        raise BadInput(f"row {row} cannot be sent: {wrong}: {sample!r:.200}") from None


def _check_finite(sample: Mapping[str, Any], row: int) -> None:
    """Raise BadInput for an infinite number. NaN is a missing value."""
    x = sample.get("x")
    named = x.items() if isinstance(x, Mapping) else enumerate(x or (), 1)
    values = [(f"feature {name!r}", value) for name, value in named]
    values += [("the label", sample.get("y")), ("the weight", sample.get("weight"))]
    for what, value in values:
        if isinstance(value, float) and isinf(value):
            raise BadInput(f"row {row}: {what:.80} is not a finite number: {value!r}")


def labels_body(labels: Mapping[str | int, Any]) -> bytes:
    """Labels by the ids of their rows, as JSON. Raises BadInput."""
    try:
        fields = [
            {"id": _id(sample), "y": _plain_as("the label of {!r}", sample, y)}
            for sample, y in labels.items()
        ]
        for one in fields:
            if isinstance(one["y"], float) and isinf(one["y"]):
                raise TypeError(f"the label of {one['id']!r} is not a finite number: {one['y']!r}")
        return _encoder.encode({"labels": fields})
    except _CANNOT_BE_WRITTEN as wrong:
        raise BadInput(str(wrong)) from None


def plain(value: Any) -> Any:
    """A number, bool or text as a built-in type; None if it is missing (NA).

    NumPy scalars are converted by their `tolist`. Raises TypeError for any other value: a JSON
    encoder would write dates, bytes or UUIDs as texts, which the server takes for categories.
    """
    if type(value) in _PLAIN:
        return value
    # A subclass, as IntEnum, has the value of its base, even if it overrides the conversion.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, Decimal):
        if value.is_infinite():
            return float(value)
        return Decimal(value) if value.is_finite() else nan
    if type(value).__name__ == "NAType":
        return None
    if hasattr(value, "tolist"):
        found = value.tolist()
        if type(found) in _PLAIN and not (type(found) is int and _holds_times(value)):
            return found
    raise TypeError(f"{type(value).__name__} is not a number, bool or text: {value!r:.60}")


def listed(values: Any) -> Any:
    """An array or Series as a list of built-in values; NumPy times are left as they are."""
    if not hasattr(values, "tolist"):
        return values
    return list(values) if _holds_times(values) else values.tolist()


def _holds_times(values: Any) -> bool:
    """Are these NumPy times? `tolist` turns those of fine resolution into integers."""
    return getattr(getattr(values, "dtype", None), "kind", "") in ("m", "M")


def _is_plain(sample: Mapping[str, Any]) -> bool:
    """Has this sample built-in types only? A fast path, because most samples have."""
    if type(sample) is not dict:
        return False
    x, get = sample["x"], sample.get
    if type(x) is dict:
        has_plain_values = _TEXT.issuperset(map(type, x)) and _PLAIN.issuperset(
            map(type, x.values())
        )
    else:
        has_plain_values = type(x) in _ROWS and _PLAIN.issuperset(map(type, x))
    return (
        has_plain_values
        and type(get("y")) in _PLAIN
        and type(get("weight")) in _PLAIN
        and type(get("id")) in _PLAIN
    )


def _plain_sample(sample: Mapping[str, Any]) -> dict[str, Any]:
    fields = dict(sample) | {"x": _plain_row(sample["x"])}
    for name in ("y", "weight"):
        if name in fields:
            fields[name] = _plain_as("the {}", "label" if name == "y" else name, fields[name])
    if "id" in fields:
        fields["id"] = _id(fields["id"])
    return fields


def _plain_row(x: Any) -> Any:
    if isinstance(x, Mapping):
        row = {_name(name): _plain_as("feature {!r}", name, value) for name, value in x.items()}
        if len(row) < len(x):
            raise TypeError(f"two features have one name: {list(x)!r:.60}")
        return row
    x = listed(x)
    if isinstance(x, list | tuple):
        return [_plain_as("feature {!r}", index, value) for index, value in enumerate(x, 1)]
    if x is None:
        return None
    raise TypeError(f"a row must be a list, a dict or an array, got {type(x).__name__}: {x!r:.60}")


def _name(name: Any) -> str:
    """The name of a feature; a whole number is the index of a column. Raises TypeError."""
    if isinstance(name, str):
        return str.__str__(name)
    found = name.tolist() if hasattr(name, "tolist") else name
    if isinstance(found, str) or type(found) is int:
        return str(found)
    raise TypeError(f"a feature's name must be a text, got {type(name).__name__}: {name!r:.60}")


def _plain_as(what: str, name: Any, value: Any) -> Any:
    """As `plain`; the error begins with `what`, formatted with `name`."""
    try:
        return plain(value)
    except TypeError as wrong:
        raise TypeError(f"{what.format(name):.80}: {wrong}") from None


def _id(value: Any) -> Any:
    """An id: JSON writes UUIDs and dates as texts, a Decimal is converted to its text."""
    if isinstance(value, Decimal):
        return str(value)
    if type(value).__name__ == "NAType":
        return None
    return value.tolist() if hasattr(value, "tolist") else value


# -- bodies ----------------------------------------------------------------------------------------


class Body(NamedTuple):
    """The NDJSON body of one request."""

    content: bytes
    rows: int


class Batching:
    """Collects samples until a body is full."""

    def __init__(self, rows_per_request: int = ROWS_PER_REQUEST) -> None:
        if rows_per_request < 1:
            raise BadInput(f"rows_per_request must be >= 1, got {rows_per_request}")
        self._most = rows_per_request
        self._lines: list[bytes] = []
        self._size = 0
        self._row = 0

    def add(self, sample: Mapping[str, Any]) -> Body | None:
        """Add a sample; the previous body if this sample does not fit in it. Raises BadInput."""
        line = sample_line(sample, self._row) + b"\n"
        self._row += 1
        is_full = len(self._lines) == self._most or self._size + len(line) > LARGEST_BODY
        body = self.rest() if is_full else None
        self._lines.append(line)
        self._size += len(line)
        return body

    def rest(self) -> Body | None:
        """The last, partial body; None if there are no samples left."""
        if not self._lines:
            return None
        body = Body(b"".join(self._lines), len(self._lines))
        self._lines, self._size = [], 0
        return body


def bodies_of(samples: Iterable[Mapping[str, Any]], rows_per_request: int) -> Iterator[Body]:
    """Bodies of all samples, in their order; lazy."""
    batching = Batching(rows_per_request)
    for sample in samples:
        body = batching.add(sample)
        if body is not None:
            yield body
    body = batching.rest()
    if body is not None:
        yield body


async def bodies_arriving(
    samples: AsyncIterable[Any], rows_per_request: int
) -> AsyncIterator[Body]:
    """Bodies of an asynchronous stream of samples."""
    batching = Batching(rows_per_request)
    async for given in samples:
        full = batching.add(sample_of(given))
        if full is not None:
            yield full
    last = batching.rest()
    if last is not None:
        yield last
