"""application/vnd.apache.arrow.stream: a table whose columns are y or label, weight, id, features.

Numbers and bools stand for themselves, a string is the feature NAME=TEXT as anywhere; a dictionary
is what its values are. A null id is none; any other null makes the row a bad one. Needs pyarrow.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

from dualstream.service.codecs.parsed_rows import IntakeBuilder, ParsedRows
from dualstream.service.codecs.record_reader import features_of
from dualstream.service.codecs.row_schema import (
    LARGEST,
    LONGEST_NAME,
    BadRow,
    Label,
    RowSchema,
    pointer_step,
)
from dualstream.service.codecs.table_columns import TableColumns, columns_of
from dualstream.solvers import Batch, InvalidRow, class_places, hash_names
from dualstream.wire.chunking.arrow_messages import check_messages
from dualstream.wire.problems import Problem

MAX_ROWS = 1 << 22
MAX_CELLS = 1 << 25
"""Of one body: bools take a bit each, and would come out a hundred times as long."""


def parse_arrow(door: RowSchema, body: bytes, labelled: bool) -> ParsedRows:
    """Rows of an Arrow stream.

    Raises Problem 400 for a damaged one, 413 for too many rows, 415 without pyarrow, 422 for
    columns that the model cannot take.
    """
    pa = _pyarrow()
    check_messages(body)
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            columns = columns_of(door, reader.schema.names, labelled)
            _check_types(pa, door, reader.schema, columns, labelled)
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
        if rows > MAX_ROWS or rows * features > MAX_CELLS:
            reason = f"one body holds at most {MAX_ROWS} rows and {MAX_CELLS} values"
            raise Problem(413, "body-too-large", reason)
        batch.validate(full=True)
        yield batch


def _check_types(
    pa: ModuleType, door: RowSchema, schema: Any, columns: TableColumns, labelled: bool
) -> None:
    """Raise Problem 422 for a column of values that none of its rows may have."""
    numbers = {"integer", "float"}
    features = {*numbers, "bool", *(["text"] if door.is_hashed else [])}
    labels = numbers if door.task == "regression" else {*numbers, "bool", "text"}
    wanted = [(place, features) for place in columns.features]
    wanted += [] if columns.weight is None else [(columns.weight, numbers)]
    if labelled:
        wanted += [] if columns.y is None else [(columns.y, labels)]
        wanted += [] if columns.id is None else [(columns.id, {"integer", "text"})]
    values = _values_of(pa, schema)
    for place, accepted in wanted:
        if values[place] not in accepted:
            reason = f"column {columns.names[place][:50]!r} cannot hold {schema.types[place]}"
            raise Problem(422, "invalid-body", reason)


def parse_slowly(
    door: RowSchema, tables: list[Any], columns: TableColumns, labelled: bool
) -> ParsedRows:
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
    build: IntakeBuilder, door: RowSchema, table: Any, columns: TableColumns, i: int, place: int
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
    pa: ModuleType, door: RowSchema, tables: list[Any], columns: TableColumns, labelled: bool
) -> ParsedRows:
    """As `parse_slowly`, with NumPy: only bad rows are read one by one, for their reasons."""
    build = IntakeBuilder(door, labelled)
    if not tables:
        return build.intake()
    layout = _Layout(pa, door, tables[0].schema, columns, labelled)
    batches: list[Batch] = []
    places: list[np.ndarray] = []
    names: list[tuple[int, str]] = []
    first = 0
    for table in tables:
        read = _Columns(layout, table)
        for i in np.flatnonzero(~read.is_good).tolist():
            try:
                _take(build, door, table, columns, i, first + i)
            except BadRow as bad:
                build.refuse(first + i, bad.pointer, bad.reason)
        good = np.flatnonzero(read.is_good)
        if len(good):
            batches.append(read.batch())
            places.append(good + first)
            names += read.names(good) if labelled else []
        first += table.num_rows
    assert not len(build.listed), "a row that is not good was read as one"
    found = build.intake()
    if batches:
        found.rows = Batch.concat(batches)
        found.places = np.concatenate(places).tolist() if found.errors else range(first)
        found.names_beside = list(dict.fromkeys(names))
    return found


class _Layout:
    """What the columns of a schema are to a model."""

    def __init__(
        self, pa: ModuleType, door: RowSchema, schema: Any, columns: TableColumns, labelled: bool
    ) -> None:
        self.pa, self.door, self.columns = pa, door, columns
        self.names = [columns.names[column] for column in columns.features]
        if door.is_hashed:
            self.places = hash_names(self.names, _bits(door)).astype(np.int32)
        else:
            self.places = np.array([door.place(name) for name in self.names], np.int32)
        values = _values_of(pa, schema)
        self.texts = [j for j, column in enumerate(columns.features) if values[column] == "text"]
        # Columns of numbers are read in the order of their places: no row has to be sorted then.
        by_place = np.argsort(self.places, kind="stable")
        self.sorted_places = self.places[by_place]
        self.is_sorted = not self.texts and bool(np.all(np.diff(self.sorted_places) > 0))
        order = by_place.tolist() if self.is_sorted else range(len(self.names))
        texts = set(self.texts)
        self.numbers = [j for j in order if j not in texts]
        self.y, self.weight = columns.y if labelled else None, columns.weight
        self.is_y_number = (
            self.y is not None and door.task != "multiclass" and values[self.y] != "text"
        )
        # The columns that become one matrix: numbers of features, then the weight, then the label.
        self.matrix = [columns.features[j] for j in self.numbers]
        self.matrix += [] if self.weight is None else [self.weight]
        self.matrix += [self.y] if self.y is not None and self.is_y_number else []
        types = schema.types
        self.are_float64 = all(types[column] == pa.float64() for column in self.matrix)


class _Columns:
    """The columns of one record batch as arrays."""

    def __init__(self, layout: _Layout, table: Any) -> None:
        self._layout, self._pa, self._door = layout, layout.pa, layout.door
        n = table.num_rows
        self.is_good = np.ones(n, np.bool_)
        """(n,): rows without a null, a number out of range, or a label that the model lacks."""
        self._texts: dict[int, tuple[list[str], np.ndarray, np.ndarray]] = {}
        """Of columns of texts: those shown as names; which one, and which place, each row has."""
        for j in layout.texts:
            column = table.column(layout.columns.features[j])
            self._texts[j] = self._read_texts(column, layout.names[j])
        matrix = self._matrix(table.select(layout.matrix), n, layout.are_float64)
        d = len(layout.numbers)
        if layout.is_sorted:
            self._x = np.ascontiguousarray(matrix[:, :d])
        else:
            self._x = np.ones((n, len(layout.names)))
            self._x[:, layout.numbers] = matrix[:, :d]
            self._row_places = np.tile(layout.places, (n, 1))
            for j, (_, _, places) in self._texts.items():
                self._row_places[:, j] = places
        # Neither min nor max looks past a NaN.
        if not (self._x.min(initial=0) >= -LARGEST and self._x.max(initial=0) <= LARGEST):
            self.is_good &= (np.abs(self._x) <= LARGEST).all(axis=1)
        if not layout.is_sorted:
            self._check_sums()
        self._weights = np.ones(n)
        if layout.weight is not None:
            self._weights = matrix[:, d].copy()
            self.is_good &= (self._weights >= 0) & (self._weights <= LARGEST)
        self._labels: np.ndarray = np.zeros(n)
        self._class_of: list[float | str | None] = []
        """Of classes: what each number in `_labels` stands for."""
        if layout.is_y_number:
            self._read_numbers_of_labels(matrix[:, -1])
        elif layout.y is not None:
            self._read_kinds_of_labels(table.column(layout.y))

    def batch(self) -> Batch:
        """The good rows."""
        x, labels, weights = self._x, self._labels, self._weights
        if not self.is_good.all():
            x, labels, weights = x[self.is_good], labels[self.is_good], weights[self.is_good]
        classes: tuple[str, ...] = ()
        if self._class_of:
            labels, classes = class_places([str(self._class_of[code]) for code in labels.tolist()])
        if self._layout.is_sorted:
            entries = self._sorted_rows(x)
        else:
            rows = self._merged_rows(np.flatnonzero(self.is_good))
            entries = rows.indptr, rows.indices, rows.values
        return Batch.of_checked(*entries, labels, weights, self._door.dim, classes)

    def _sorted_rows(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Pointers, indices and values of rows whose places increase from column to column."""
        n, d = x.shape
        places = self._layout.sorted_places
        if x.all():  # without a copy
            return np.arange(n + 1) * d, np.tile(places, n), x.reshape(-1)
        rows = Batch.from_dense(x)
        return rows.indptr, places[rows.indices], rows.values

    def _merged_rows(self, rows: np.ndarray) -> Batch:
        """Rows of features in any order of their places; those that share one are added.

        Raises InvalidRow for a sum beyond 1e100.
        """
        pointers = np.arange(len(rows) + 1) * self._x.shape[1]
        places, values = self._row_places[rows].ravel(), self._x[rows].ravel()
        return Batch.from_csr(pointers, places, values, dim=self._door.dim, sum_duplicates=True)

    def _check_sums(self) -> None:
        """Of the few rows whose sums may be beyond 1e100, find those that have such a sum."""
        most = np.abs(self._x).max(axis=1, initial=0)
        for i in np.flatnonzero(self.is_good & (most > LARGEST / self._x.shape[1])).tolist():
            try:
                self._merged_rows(np.array([i]))
            except InvalidRow:
                self.is_good[i] = False

    def names(self, rows: np.ndarray) -> list[tuple[int, str]]:
        """Places and names of what was not told yet, in the order in which these rows hold them."""
        if not self._door.tells_names:
            return []
        found: list[tuple[int, int, int, str]] = []
        for j, name in enumerate(self._layout.names):
            if j not in self._texts:
                found.append((0, j, int(self._layout.places[j]), name))
                continue
            shown, codes, places = self._texts[j]
            kinds, at = np.unique(codes[rows], return_index=True)
            for kind, row in zip(kinds.tolist(), at.tolist(), strict=True):
                found.append((row, j, int(places[rows[row]]), shown[kind]))
        return self._door.untold([(place, name) for _, _, place, name in sorted(found)])

    def _matrix(self, table: Any, n: int, are_float64: bool) -> np.ndarray:
        """Columns of numbers and bools as float64 (n, columns), column by column; NaN for a null.

        `Array.to_numpy` imports pandas if it is installed, which takes half a second.
        """
        if not table.num_columns:
            return np.empty((n, 0))
        if not are_float64:
            pa = self._pa
            columns = [
                column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
                for column in table.columns
            ]
            columns = [column.cast(pa.float64(), safe=False) for column in columns]
            table = pa.RecordBatch.from_arrays(columns, table.schema.names)
        # Row by row takes twice as long, a copy by NumPy included.
        matrix: np.ndarray = table.to_tensor(null_to_nan=True, row_major=False).to_numpy()
        return matrix

    def _coded(self, column: Any) -> tuple[list[Any], np.ndarray]:
        """The different values of a column, the last one None, and which one each row has."""
        if self._pa.types.is_string_view(column.type):
            column = column.cast(self._pa.large_string())
        if not self._pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        kinds = [*column.dictionary.to_pylist(), None]
        indices = self._pa.RecordBatch.from_arrays([column.indices], [""])
        codes = self._matrix(indices, len(column), False)[:, 0]
        return kinds, np.where(np.isnan(codes), len(kinds) - 1, codes).astype(np.int64)

    def _read_texts(self, column: Any, name: str) -> tuple[list[str], np.ndarray, np.ndarray]:
        kinds, codes = self._coded(column)
        longest = LONGEST_NAME
        is_good = [kind is not None and len(kind) <= longest for kind in kinds]
        self.is_good &= np.array(is_good)[codes]
        shown = [f"{name}={kind}" for kind in kinds]
        return shown, codes, hash_names(shown, _bits(self._door))[codes]

    def _read_numbers_of_labels(self, column: np.ndarray) -> None:
        if self._door.task == "regression":
            self._labels = column.copy()
            self.is_good &= np.abs(column) <= LARGEST
            return
        self._labels = np.full(len(column), np.nan)
        for number in (1.0, 0.0, -1.0):
            label = self._label(number)
            if label is not None:
                self._labels[column == number] = label
        self.is_good &= ~np.isnan(self._labels)

    def _read_kinds_of_labels(self, column: Any) -> None:
        kinds, codes = self._coded(column)
        labels = [self._label(kind) for kind in kinds]
        self.is_good &= np.array([label is not None for label in labels])[codes]
        if self._door.task == "multiclass":
            self._labels, self._class_of = codes, labels
        else:
            self._labels = np.array(labels, np.float64)[codes]

    def _label(self, label: Label | None) -> float | str | None:
        """What the learner sees for a label; None for a bad one."""
        try:
            return self._door.label(label)
        except BadRow:
            return None


def _bits(door: RowSchema) -> int:
    return (door.dim - 1).bit_length()


def _values_of(pa: ModuleType, schema: Any) -> list[str]:
    """What each column holds: "integer", "float", "bool", "text" or "other"."""
    of = pa.types
    known: dict[int, str] = {}
    found = []
    for kind in schema.types:
        if isinstance(kind, pa.DictionaryType):
            kind = kind.value_type
        if kind.id not in known:
            is_text = of.is_string(kind) or of.is_large_string(kind) or of.is_string_view(kind)
            known[kind.id] = (
                ("integer" if of.is_integer(kind) else "")
                or ("float" if of.is_floating(kind) else "")
                or ("bool" if of.is_boolean(kind) else "")
                or ("text" if is_text else "other")
            )
        found.append(known[kind.id])
    return found
