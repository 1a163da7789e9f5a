"""application/vnd.apache.arrow.stream: a table whose columns are y or label, weight, id, features.

Numbers and bools stand for themselves, a string is the feature NAME=TEXT as anywhere; a dictionary
is what its values are. A null id is none; any other null makes the row a bad one. Needs pyarrow.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

from service.codecs.arrow_plain import MOST_CELLS, MOST_ROWS, parse_plain, remember_schema
from service.codecs.column_names import TableColumns, columns_of
from service.codecs.door import LARGEST, LONGEST_NAME, BadRow, Door, Label, pointer_step
from service.codecs.intake import Intake, IntakeBuilder
from service.codecs.records import features_of
from service.codecs.row_arrays import RowArrays
from service.cuts.arrow_messages import check_messages
from service.errors import Problem, RowError
from solvers import hash_names
from solvers.text import NUMBERS, PLACES, read_rows


def parse_arrow(door: Door, body: bytes, labelled: bool) -> Intake:
    """Rows of an Arrow stream.

    Raises Problem 400 for a damaged one, 413 for too many rows, 415 without pyarrow, 422 for
    columns that the model cannot take.
    """
    pa = _pyarrow()
    check_messages(body)
    plain = parse_plain(door, body, labelled)
    if plain is not None:
        return plain
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            columns = columns_of(door, reader.schema.names, labelled)
            _check_types(pa, door, reader.schema, columns, labelled)
            if remember_schema(pa, door, body, reader.schema, columns, labelled):
                plain = parse_plain(door, body, labelled)
                if plain is not None:
                    return plain
            tables = list(_checked(reader, len(columns.features)))
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise Problem(400, "malformed-body", f"no Arrow stream: {error}") from None
    if columns.id is not None and labelled:
        return parse_slowly(door, tables, columns, labelled)
    return parse_quickly(pa, door, tables, columns, labelled)


def _pyarrow() -> ModuleType:
    try:
        import pyarrow as pa
        import pyarrow.ipc
    except ImportError:
        reason = "Arrow streams need the package pyarrow here: pip install 'dualstream[arrow]'"
        raise Problem(415, "unsupported-media-type", reason) from None
    module: ModuleType = pa
    return module


def _checked(reader: Any, features: int) -> Iterator[Any]:
    """The record batches, valid ones; what comes from outside may point anywhere."""
    rows = 0
    for batch in reader:
        if batch.num_rows < 0:  # which is valid where there are no columns
            raise ValueError(f"a record batch of {batch.num_rows} rows")
        rows += batch.num_rows
        if rows > MOST_ROWS or rows * features > MOST_CELLS:
            reason = f"one body holds at most {MOST_ROWS} rows and {MOST_CELLS} values"
            raise Problem(413, "body-too-large", reason)
        batch.validate(full=True)
        yield batch


def _check_types(
    pa: ModuleType, door: Door, schema: Any, columns: TableColumns, labelled: bool
) -> None:
    """Raise Problem 422 for a column of values that none of its rows may have."""
    of = pa.types
    numbers = [of.is_integer, of.is_floating]
    texts = [of.is_string, of.is_large_string, of.is_string_view]
    features = [*numbers, of.is_boolean, *(texts if door.is_hashed else [])]
    labels = numbers if door.task == "regression" else [*numbers, of.is_boolean, *texts]
    wanted = [(place, features) for place in columns.features]
    wanted += [] if columns.weight is None else [(columns.weight, numbers)]
    if labelled:
        wanted += [] if columns.y is None else [(columns.y, labels)]
        wanted += [] if columns.id is None else [(columns.id, [of.is_integer, *texts])]
    types = schema.types
    for place, kinds in wanted:
        kind = types[place]
        if not any(is_kind(_value_type(pa, kind)) for is_kind in kinds):
            reason = f"column {columns.names[place][:50]!r} cannot hold {kind}"
            raise Problem(422, "invalid-body", reason)


def parse_slowly(door: Door, tables: list[Any], columns: TableColumns, labelled: bool) -> Intake:
    """Row by row, with the reason of each bad one."""
    build = IntakeBuilder(door, labelled)
    place = 0
    for table in tables:
        for i in range(table.num_rows):
            try:
                _take(build, door, table, columns, i, place)
            except BadRow as bad:
                build.refuse(place, bad.pointer, bad.reason)
            place += 1
    return build.intake()


def _take(
    build: IntakeBuilder, door: Door, table: Any, columns: TableColumns, i: int, place: int
) -> None:
    """Add row i of the table; raises BadRow and adds nothing."""
    pairs: list[tuple[str, float | bool | str]] = []
    for column in columns.features:
        name, value = columns.names[column], table.column(column)[i].as_py()
        if value is None:
            raise BadRow(f"/x/{pointer_step(name)}", "the value is null")
        pairs.append((name, float(value) if type(value) is int else value))
    weight = 1.0 if columns.weight is None else table.column(columns.weight)[i].as_py()
    if weight is None:
        raise BadRow("/weight", "the weight is null")
    y = None if columns.y is None else table.column(columns.y)[i].as_py()
    id_ = None if columns.id is None else table.column(columns.id)[i].as_py()
    build.take(place, features_of(door, pairs), y, float(weight), id_)


def parse_quickly(
    pa: ModuleType, door: Door, tables: list[Any], columns: TableColumns, labelled: bool
) -> Intake:
    """As `parse_slowly`, by a kernel as far as rows are of the usual form."""
    n = sum(table.num_rows for table in tables)
    a = RowArrays(door, labelled, n, n * len(columns.features), 0)
    a.is_telling = False
    errors: list[RowError] = []
    names: list[tuple[int, str]] = []
    first = 0
    for table in tables:
        read = _Columns(pa, door, table, columns, a)
        before = a.count
        for _ in read.read(first):
            place = int(a.at[2])
            build = IntakeBuilder(door, labelled)
            try:
                _take(build, door, table, columns, place - first, place)
            except BadRow as bad:
                errors.append(RowError(place, bad.pointer, bad.reason))
            else:
                a.take(_NO_TEXT, build.listed, place)
            a.at[2] = place + 1
        names += read.names(a.places[before : a.count] - first) if labelled else []
        first += table.num_rows
    return a.intake(errors, list(dict.fromkeys(names)))


_BLOCK = 256
_NO_TEXT = np.empty(0, np.uint8)


class _Columns:
    """The columns of one record batch, as the kernel takes them."""

    def __init__(
        self, pa: ModuleType, door: Door, table: Any, columns: TableColumns, a: RowArrays
    ) -> None:
        self._pa, self._door, self._a = pa, door, a
        self._names = [columns.names[column] for column in columns.features]
        self._n, d = table.num_rows, len(columns.features)
        self._usual = np.ones(self._n, np.bool_)
        self._texts: dict[int, tuple[list[str], np.ndarray, np.ndarray]] = {}
        """Of columns of texts: those shown as names; which one, and which place, each row has."""
        self._numbers_of: dict[int, np.ndarray] = {}
        for j, column in enumerate(columns.features):
            if _holds_texts(pa, table.column(column).type):
                self._texts[j] = self._read_texts(table.column(column), self._names[j])
            else:
                self._numbers_of[j] = self._numbers(table.column(column))
        self._places = self._places_of_names()
        # Where all are numbers they are taken by their places, so that no row has to be sorted.
        by_place = np.argsort(self._places, kind="stable")
        self._order = np.arange(d) if self._texts else by_place
        in_order = self._places[self._order]
        self._is_tidy = not self._texts and bool(np.all(in_order[1:] > in_order[:-1]))
        self._weights = np.ones(self._n)
        if columns.weight is not None:
            self._weights = self._numbers(table.column(columns.weight))
            self._usual &= (self._weights >= 0) & (self._weights <= LARGEST)
        self._labels = np.zeros(self._n)
        if columns.y is not None:
            self._read_labels(table.column(columns.y))

    def read(self, first: int) -> Iterator[None]:
        """Let the kernel read all rows; yields at each one that is not usual.

        The table's first row is the first-th of all. Rows are read in blocks that caches hold.
        """
        a, d = self._a, len(self._order)
        block = np.ones((d, min(_BLOCK, self._n)))
        texts = sorted(self._texts)
        texts_of = np.full(d, -1, np.int64)
        texts_of[texts] = np.arange(len(texts))
        text_places = np.array([self._texts[j][2] for j in texts], np.int32)
        text_places = text_places.reshape(len(texts), self._n)
        places = self._places[self._order]
        for begin in range(0, self._n, _BLOCK):
            end = min(begin + _BLOCK, self._n)
            for k, j in enumerate(self._order.tolist()):
                if j not in self._texts:
                    block[k, : end - begin] = self._numbers_of[j][begin:end]
            while read_rows(
                block, places, texts_of, text_places,
                self._usual, self._labels, self._weights, self._is_tidy, self._door.is_hashed,
                a.indptr, a.indices, a.values, a.labels, a.weights, a.places, a.spare, a.held,
                a.at, first, begin, end,
            ):  # fmt: skip
                yield

    def names(self, rows: np.ndarray) -> list[tuple[int, str]]:
        """Places and names of what was not told yet, in the order in which these rows hold them."""
        if not len(rows) or not self._door.tells_names:
            return []
        found: list[tuple[int, int, int, str]] = []
        for j, name in enumerate(self._names):
            if j not in self._texts:
                found.append((0, j, int(self._places[j]), name))
                continue
            shown, codes, places = self._texts[j]
            kinds, at = np.unique(codes[rows], return_index=True)
            for kind, row in zip(kinds.tolist(), at.tolist(), strict=True):
                found.append((row, j, int(places[rows[row]]), shown[kind]))
        return self._door.untold([(place, name) for _, _, place, name in sorted(found)])

    def _numbers(self, column: Any) -> np.ndarray:
        """The numbers of a column, as it holds them if they are float64; nulls are not usual."""
        if self._pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        return self._values(column, np.float64)

    def _values(self, column: Any, dtype: type[np.generic]) -> np.ndarray:
        """The numbers or bools of a column, from its buffers; nulls are 0, and not usual.

        What pyarrow has for it, `to_numpy` and scalars, would first import pandas, if it is there.
        """
        n = len(column)
        if not n:
            return np.empty(0, dtype)
        if self._pa.types.is_boolean(column.type):  # a bit each
            column = column.cast(self._pa.uint8())
        present, held = column.buffers()
        kind = column.type.to_pandas_dtype()
        values = np.frombuffer(held, kind, column.offset + n)[column.offset :]
        if kind is not dtype:
            with np.errstate(invalid="ignore"):  # a signalling NaN
                values = values.astype(dtype)
        if column.null_count:
            bits = np.frombuffer(present, np.uint8)
            are_there = np.unpackbits(bits, count=column.offset + n, bitorder="little")
            is_there = are_there[column.offset :].view(np.bool_)
            self._usual &= is_there
            values = np.where(is_there, values, dtype(0))
        return values

    def _coded(self, column: Any) -> tuple[list[Any], np.ndarray]:
        """The different values of a column, and which one each row has; nulls are not usual."""
        if self._pa.types.is_string_view(column.type):
            column = column.cast(self._pa.large_string())
        if not self._pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        kinds = column.dictionary.to_pylist()
        return kinds, self._values(column.indices, np.int64)

    def _read_texts(self, column: Any, name: str) -> tuple[list[str], np.ndarray, np.ndarray]:
        kinds, codes = self._coded(column)
        if not kinds:
            kinds = [None]
        longest = LONGEST_NAME
        is_good = [kind is not None and len(kind) <= longest for kind in kinds]
        self._usual &= np.array(is_good)[codes]
        shown = [f"{name}={kind}" for kind in kinds]
        return shown, codes, hash_names(shown, _bits(self._door))[codes]

    def _places_of_names(self) -> np.ndarray:
        if self._door.is_hashed:
            return hash_names(self._names, _bits(self._door)).astype(np.int32)
        return np.array([self._door.place(name) for name in self._names], np.int32)

    def _read_labels(self, column: Any) -> None:
        if self._a.label_kind == NUMBERS:
            self._labels = self._numbers(column)
            self._usual &= np.abs(self._labels) <= LARGEST
        elif self._a.label_kind == PLACES:
            kinds, codes = self._coded(column)
            coded = np.array([self._label(kind) for kind in kinds] or [np.nan])
            self._labels = coded[codes]
            self._usual &= ~np.isnan(self._labels)

    def _label(self, label: Label | None) -> float:
        """How a label stands among those of the rows; NaN where it is none."""
        try:
            return self._a.kind_of(self._door.label(label))
        except BadRow:
            return np.nan


def _bits(door: Door) -> int:
    return (door.dim - 1).bit_length()


def _value_type(pa: ModuleType, kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _holds_texts(pa: ModuleType, kind: Any) -> bool:
    of, kind = pa.types, _value_type(pa, kind)
    return bool(of.is_string(kind) or of.is_large_string(kind) or of.is_string_view(kind))
