"""What a caller has at hand, as samples of the API: {"x": ..., "y": ..., "weight": ..., "id": ...}.

Rows are lists of numbers, objects of features by name, or what libraries hold: a NumPy array, a
pandas DataFrame, a matrix of scipy.sparse. None of them is imported here: who gives one has done
so. What is missing there (NaN, None, NA) is sent as null, which the server refuses with its row:
nothing is made up for it.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from numbers import Number
from typing import Any, TypeGuard

from service.client.errors import BadInput
from service.client.values import listed

Sample = Mapping[str, Any]
_END = object()


def samples_of(
    x: Any,
    y: Any = None,
    weight: Any = None,
    ids: Any = None,
    names: Sequence[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """The samples of many rows; `y`, `weight` and `ids` have one for each row.

    `names` calls the columns of an array or a matrix; without them they are indices from 1. With a
    DataFrame `y`, `weight` and `ids` may be names of columns, which are then no features.
    Raises BadInput where they are not of one length.
    """
    beside = {"y": y, "weight": weight, "id": ids}
    frame = _loaded("pandas", "DataFrame")
    if frame and isinstance(x, frame):
        x, beside = _without_columns(x, beside)
    columns = {name: listed(values) for name, values in beside.items() if values is not None}
    rows = rows_of(x, names)
    iterators = [iter(column) for column in columns.values()]
    for number, row in enumerate(rows):
        sample = {"x": row}
        for name, values in zip(columns, iterators, strict=True):
            value = next(values, _END)
            if value is _END:
                raise BadInput(f"there are more rows than values of {name!r}, which has {number}")
            if value is not None or name == "y":
                sample[name] = value
        yield sample
    for name, values in zip(columns, iterators, strict=True):
        if next(values, _END) is not _END:
            raise BadInput(f"there are more values of {name!r} than rows")


def is_single(x: Any) -> bool:
    """Whether this is one row: an object of features, or numbers."""
    if isinstance(x, Mapping):
        return True
    array = _loaded("numpy", "ndarray")
    if array and isinstance(x, array):
        return bool(x.ndim == 1)
    if isinstance(x, list | tuple):
        return bool(x) and all(isinstance(value, Number) for value in islice(x, 1))
    return False


def row_of(x: Any, names: Sequence[str] | None = None) -> Any:
    """One row as the API has it."""
    return x if _is_mapping(x) else _named(listed(x), names)


def rows_of(x: Any, names: Sequence[str] | None = None) -> Iterator[Any]:
    """The rows of what the caller has at hand."""
    frame = _loaded("pandas", "DataFrame")
    if frame and isinstance(x, frame):
        return _of_frame(x, names)
    if (sparse := sys.modules.get("scipy.sparse")) is not None and sparse.issparse(x):
        return _of_sparse(x, names)
    if isinstance(x, str | bytes) or not isinstance(x, Iterable):
        raise BadInput(f"rows are lists, objects, an array, a DataFrame or a matrix, got {x!r:.60}")
    return (row_of(row, names) for row in x)


def sample(row: Any, y: Any, weight: Any, sample_id: Any) -> dict[str, Any]:
    """One sample as the API has it."""
    told = {"x": row, "y": y}
    beside = {"weight": weight, "id": sample_id}
    return told | {name: value for name, value in beside.items() if value is not None}


def sample_of(given: Any) -> Sample:
    """A sample of a stream: as the API has it, or a pair (x, y)."""
    if _is_mapping(given) and "x" in given:
        return given
    if isinstance(given, tuple) and len(given) == 2:
        return {"x": row_of(given[0]), "y": given[1]}
    raise BadInput(f'a sample is {{"x": ..., "y": ...}} or a pair (x, y), got {given!r:.60}')


def _is_mapping(x: Any) -> TypeGuard[Mapping[Any, Any]]:
    # Of a dict, which most are, this tells far sooner.
    return type(x) is dict or isinstance(x, Mapping)


def _of_frame(frame: Any, names: Sequence[str] | None) -> Iterator[Any]:
    """Columns called by texts are features of these names; others stand for their places."""
    labels = list(frame.columns)
    if names is None and all(isinstance(label, str) for label in labels):
        names = labels
    # A column at a time, so that each keeps its type.
    columns = [frame.iloc[:, place].tolist() for place in range(len(labels))]
    if not columns:
        return iter([{}] * len(frame))
    return (_named(list(row), names) for row in zip(*columns, strict=True))


def _of_sparse(matrix: Any, names: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    rows = matrix.tocsr()
    called = names if names is not None else range(1, rows.shape[1] + 1)
    if len(called) != rows.shape[1]:
        raise BadInput(f"the matrix has {rows.shape[1]} columns, and there are {len(called)} names")
    for row in range(rows.shape[0]):
        here = slice(rows.indptr[row], rows.indptr[row + 1])
        places, values = rows.indices[here].tolist(), rows.data[here].tolist()
        yield {str(called[place]): value for place, value in zip(places, values, strict=True)}


def _named(values: list[Any], names: Sequence[str] | None) -> Any:
    if names is None:
        return values
    if len(names) != len(values):
        raise BadInput(f"a row has {len(values)} values, and there are {len(names)} names")
    return dict(zip(names, values, strict=True))


def _without_columns(frame: Any, beside: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The features alone, and the columns that were called by their names."""
    called = {name: column for name, column in beside.items() if isinstance(column, str)}
    for name, column in called.items():
        if column not in frame.columns:
            raise BadInput(f"the table has no column {column!r}, of which {name!r} should be")
    found = {name: frame[column] for name, column in called.items()}
    return frame.drop(columns=list(called.values())), beside | found


def _loaded(module: str, name: str) -> Any:
    """A class of a library, if anybody has imported that."""
    return getattr(sys.modules.get(module), name, None)
