"""Conversion of rows (lists, dicts, NumPy, pandas, SciPy) to samples and NDJSON bodies.

A sample is {"x": ..., "y": ..., "weight": ..., "id": ...}. Rows are lists of numbers, dicts of
features by name, a NumPy array, a pandas DataFrame or a scipy.sparse matrix. None of these
libraries is imported here. Other tables are sent as Arrow, see arrow_tables.py. For a model with
`columns` a row also has lists, nested objects and times, and the columns of its label, weight and
id. Missing values (NaN, None, NA, NaT) are sent as null; a server refuses such rows, unless the
model has `columns`. Infinite numbers, integers that lose digits as a float, and names that are
repeated or no texts, raise BadInput.
"""

import sys
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from numbers import Number
from typing import Any, NamedTuple, TypeGuard

from dualstream.client.calls import NDJSON
from dualstream.client.errors import BadInput
from dualstream.client.row_values import holds_times, listed, name_of, sample_line
from dualstream.wire.plural import plural

Sample = Mapping[str, Any]
ROWS_PER_REQUEST = 1000
# The server splits a longer body; it learns up to 1 MiB in one append.
LARGEST_BODY = 1024 * 1024
_END = object()


# -- rows and samples ------------------------------------------------------------------------------


def samples_of(
    x: Any, y: Any = None, weight: Any = None, ids: Any = None, names: Sequence[str] | None = None
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
                raise BadInput(f"{name!r} has {plural(number, 'value')}, but there are more rows")
            if value is not None or name == "y":
                sample[name] = value
        yield sample
    for name, values in zip(columns, iterators, strict=True):
        if next(values, _END) is not _END:
            raise BadInput(f"{name!r} has more values than there are rows")


def _column(name: str, values: Any) -> Any:
    """One value per row. Raises BadInput."""
    column = listed(values)
    if isinstance(column, str | bytes | Mapping) or not isinstance(column, Iterable):
        raise BadInput(f"{name!r} must have one value per row, got {values!r:.60}")
    return column


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
        return _named(list(x) if holds_times(x) else x.tolist(), names)
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
    if is_table(x):
        raise BadInput(f"only learn, observe and predict take a table, got a {type(x).__name__}")
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
            text = name_of(name)
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
    others = {"y": y, "weight": weight, "id": sample_id}
    return {"x": row} | {name: value for name, value in others.items() if value is not None}


def sample_of(item: Any) -> Sample:
    """A sample of a stream: a sample of the API, or a pair (x, y)."""
    if _is_mapping(item) and "x" in item:
        return item
    if isinstance(item, tuple) and len(item) == 2:
        return {"x": row_of(item[0]), "y": item[1]}
    raise BadInput(f'a sample must be {{"x": ..., "y": ...}} or a pair (x, y), got {item!r:.60}')


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
    columns = [frame.iloc[:, index].tolist() for index in range(len(labels))]
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
        width = plural(rows.shape[1], "column")
        raise BadInput(f"the matrix has {width} and {plural(len(called), 'name')}")
    for row in range(rows.shape[0]):
        here = slice(rows.indptr[row], rows.indptr[row + 1])
        indices, values = rows.indices[here].tolist(), rows.data[here].tolist()
        yield {str(called[index]): value for index, value in zip(indices, values, strict=True)}


def _named(values: list[Any], names: Sequence[str] | None) -> Any:
    if names is None:
        return values
    if len(names) != len(values):
        raise BadInput(f"a row has {plural(len(values), 'value')} and {plural(len(names), 'name')}")
    return dict(zip(names, values, strict=True))


def _without_columns(frame: Any, others: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The feature columns, and the columns that `y`, `weight` and `ids` name."""
    _check_columns(frame)
    called = {name: column for name, column in others.items() if isinstance(column, str)}
    for name, column in called.items():
        if column not in frame.columns:
            raise BadInput(f"the table has no column {column!r} (argument {name!r})")
    arguments = {name: frame[column] for name, column in called.items()}
    return frame.drop(columns=list(called.values())), others | arguments


def is_table(x: Any) -> bool:
    """Is this a table that is sent as Arrow? pandas' are sent as JSON lines."""
    classes = (_loaded("pandas", name) for name in ("DataFrame", "Series"))
    return has_stream(x) and not isinstance(x, tuple(one for one in classes if one is not None))


def has_stream(x: Any) -> bool:
    """Has this object the Arrow C stream interface?"""
    return hasattr(type(x), "__arrow_c_stream__")


def _loaded(module: str, name: str) -> Any:
    """A class of a library, if that library is imported in this process."""
    return getattr(sys.modules.get(module), name, None)


# -- bodies ----------------------------------------------------------------------------------------


class Body(NamedTuple):
    """The body of one request."""

    content: bytes
    rows: int
    nested: str | None = None
    """The first value that only a model with `columns` reads: a list, an object or a time."""
    kind: str = NDJSON
    """Its media type."""


class Batching:
    """Collects samples until a body is full."""

    def __init__(self, rows_per_request: int = ROWS_PER_REQUEST) -> None:
        if rows_per_request < 1:
            raise BadInput(f"rows_per_request must be >= 1, got {rows_per_request}")
        self._most = rows_per_request
        self._lines: list[bytes] = []
        self._nested: list[str] = []
        self._size = 0
        self._row = 0

    def add(self, sample: Mapping[str, Any]) -> Body | None:
        """Add a sample; the previous body if this sample does not fit in it. Raises BadInput."""
        nested: list[str] = []
        line = sample_line(sample, self._row, nested) + b"\n"
        self._row += 1
        is_full = len(self._lines) == self._most or self._size + len(line) > LARGEST_BODY
        body = self.rest() if is_full else None
        self._lines.append(line)
        self._nested = self._nested or nested
        self._size += len(line)
        return body

    def rest(self) -> Body | None:
        """The last, partial body; None if there are no samples left."""
        if not self._lines:
            return None
        nested = self._nested[0] if self._nested else None
        body = Body(b"".join(self._lines), len(self._lines), nested)
        self._lines, self._nested, self._size = [], [], 0
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


def body_of(samples: Iterable[Mapping[str, Any]]) -> bytes:
    """One body of all samples; empty without any. Raises BadInput."""
    return b"".join(sample_line(sample, row) + b"\n" for row, sample in enumerate(samples))


async def bodies_arriving(
    samples: AsyncIterable[Any], rows_per_request: int
) -> AsyncIterator[Body]:
    """Bodies of an asynchronous stream of samples."""
    batching = Batching(rows_per_request)
    async for item in samples:
        full = batching.add(sample_of(item))
        if full is not None:
            yield full
    last = batching.rest()
    if last is not None:
        yield last
