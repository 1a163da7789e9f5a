"""Arrow codec: concatenated streams of tables with columns y or label, weight, id, and features.

Media type application/vnd.apache.arrow.stream. A string value is the feature NAME=TEXT. A
dictionary column has the type of its values. A null id is no id; any other null is a row error.
Needs pyarrow.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

from dualstream.service.codecs.parsed_rows import ParsedRows, RowsBuilder, with_names_by_index
from dualstream.service.codecs.row_schema import (
    LARGEST,
    LONGEST_NAME,
    BadRow,
    Label,
    RowSchema,
    pointer_step,
)
from dualstream.service.codecs.table_columns import (
    TableColumns,
    columns_of,
    pandas_index,
    with_warnings,
)
from dualstream.solvers import Batch, InvalidRow
from dualstream.solvers.rows import class_names, hashing
from dualstream.wire.chunking.arrow_messages import streams_in
from dualstream.wire.problem_json import Problem
from dualstream.wire.text_values import EXACT

Table = tuple[Any, TableColumns]
"""A record batch, and the roles of its columns."""
MAX_ROWS = 1 << 22
MAX_CELLS = 1 << 25
"""Maximum values of a body: bools take a bit each, and 100 times as much when parsed."""


def parse_arrow(schema: RowSchema, body: bytes, labelled: bool) -> ParsedRows:
    """Parse an Arrow stream, or several.

    Raises Problem 400 for a damaged stream, 413 for too many rows, 415 without pyarrow, 422 for
    columns that the model does not accept.
    """
    tables = tables_in(schema, body, labelled)
    if labelled and any(columns.id is not None for _, columns in tables):
        parsed = parse_slowly(schema, tables, labelled)
    else:
        parsed = parse_quickly(_pyarrow(), schema, tables, labelled)
    return with_warnings(schema, parsed, tables[0][1].names) if tables else parsed


def tables_in(schema: RowSchema, body: bytes, labelled: bool) -> list[Table]:
    """The record batches of a body, with the roles of their columns. The index of a pandas table
    is no feature. Raises Problem as `parse_arrow`.
    """
    pa = _pyarrow()
    tables: list[Table] = []
    rows = cells = 0
    whole = pa.py_buffer(body)
    try:
        for start, end in streams_in(body):
            with pa.ipc.open_stream(whole[start:end]) as reader:
                left_out = pandas_index(reader.schema.metadata or {})
                columns = columns_of(schema, reader.schema.names, labelled, left_out)
                if schema.columns is None:
                    _check_types(pa, schema, reader.schema, columns, labelled)
                for batch in _checked(reader):
                    rows += batch.num_rows
                    cells += batch.num_rows * len(columns.features)
                    _check_size(rows, cells)
                    tables.append((batch, columns))
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise Problem(
            400, "malformed-body", f"the body is not a valid Arrow stream: {error}"
        ) from None
    return tables


def _pyarrow() -> ModuleType:
    try:
        import pyarrow as pa
        import pyarrow.ipc
    except ImportError:
        reason = "the server needs pyarrow for Arrow streams: pip install 'dualstream[arrow]'"
        raise Problem(415, "unsupported-media-type", reason) from None
    module: ModuleType = pa
    return module


def _check_size(rows: int, cells: int) -> None:
    if rows > MAX_ROWS or cells > MAX_CELLS:
        reason = f"the body has more than {MAX_ROWS} rows or {MAX_CELLS} values; split it"
        raise Problem(413, "body-too-large", reason)


def _checked(reader: Any) -> Iterator[Any]:
    """Yield the record batches after full validation: offsets in untrusted data may be wrong."""
    for batch in reader:
        if batch.num_rows < 0:  # pyarrow accepts it without columns
            raise ValueError(f"a record batch has {batch.num_rows} rows")
        batch.validate(full=True)
        yield batch


def _check_types(
    pa: ModuleType, schema: RowSchema, arrow_schema: Any, columns: TableColumns, labelled: bool
) -> None:
    """Raise Problem 422 for a column of an unsupported type."""
    numbers = {"integer", "float"}
    features = {*numbers, "bool", *(["text"] if schema.is_hashed else [])}
    labels = numbers if schema.task == "regression" else {*numbers, "bool", "text"}
    wanted = [(column, features) for column in columns.features]
    wanted += [] if columns.weight is None else [(columns.weight, numbers)]
    if labelled:
        wanted += [] if columns.y is None else [(columns.y, labels)]
        wanted += [] if columns.id is None else [(columns.id, {"integer", "text"})]
    values = _values_of(pa, arrow_schema)
    for column, accepted in wanted:
        if values[column] not in accepted:
            name, kind = columns.names[column][:50], arrow_schema.types[column]
            reason = f"column {name!r} has type {kind}; it must be {' or '.join(sorted(accepted))}"
            raise Problem(422, "invalid-body", reason)


def parse_slowly(schema: RowSchema, tables: list[Table], labelled: bool) -> ParsedRows:
    """Parse row by row, with a reason for every invalid row."""
    builder = RowsBuilder(schema, labelled)
    index = 0
    for table, columns in tables:
        for i in range(table.num_rows):
            try:
                _add_row(builder, schema, table, columns, i, index)
            except BadRow as bad:
                builder.refuse(index, bad.pointer, bad.reason)
            index += 1
    return builder.build()


def _add_row(
    builder: RowsBuilder, schema: RowSchema, table: Any, columns: TableColumns, i: int, index: int
) -> None:
    """Add row i of the table as row `index` of the body; raises BadRow and adds nothing."""
    x: dict[str, float | bool | str] = {}
    for column in columns.features:
        name, value = columns.names[column], table.column(column)[i].as_py()
        if value is None:
            reason = "the value is null; fill it, or send rows as NDJSON without the feature"
            raise BadRow(f"/x/{pointer_step(name)}", reason)
        x[name] = value
    weight = 1.0 if columns.weight is None else table.column(columns.weight)[i].as_py()
    if weight is None:
        raise BadRow("/weight", "the weight is null")
    y = None if columns.y is None else table.column(columns.y)[i].as_py()
    id_ = None if columns.id is None else table.column(columns.id)[i].as_py()
    builder.add(index, x, y, float(weight), id_)


def parse_quickly(
    pa: ModuleType, schema: RowSchema, tables: list[Table], labelled: bool
) -> ParsedRows:
    """As `parse_slowly`, by columns with NumPy; only invalid rows are parsed one by one."""
    builder = RowsBuilder(schema, labelled)
    layout: _Layout | None = None
    batches: list[Batch] = []
    row_indices: list[np.ndarray] = []
    names: dict[int, str] = {}
    first = 0
    for table, columns in tables:
        if layout is None or not layout.fits(table.schema, columns):
            layout = _Layout(pa, schema, table.schema, columns, labelled)
        read = _Columns(layout, table)
        for i in np.flatnonzero(~read.is_good).tolist():
            try:
                _add_row(builder, schema, table, columns, i, first + i)
            except BadRow as bad:
                builder.refuse(first + i, bad.pointer, bad.reason)
        good = np.flatnonzero(read.is_good)
        if len(good):
            batches.append(read.batch())
            row_indices.append(good + first)
            for index, name in read.names(good) if labelled else ():
                names.setdefault(index, name)
        first += table.num_rows
    assert not len(builder.listed), "the row is valid for the builder and invalid for NumPy"
    rows = builder.build()
    if batches:
        rows.rows = Batch.concat(batches)
        rows.row_indices = np.concatenate(row_indices).tolist() if rows.errors else range(first)
        rows.batch_names = with_names_by_index(rows.rows, list(names.items()))
    return rows


class _Layout:
    """What the columns of an Arrow schema are to a model."""

    def __init__(
        self,
        pa: ModuleType,
        schema: RowSchema,
        arrow_schema: Any,
        columns: TableColumns,
        labelled: bool,
    ) -> None:
        self.pa, self.row_schema, self.columns = pa, schema, columns
        self._arrow_schema = arrow_schema
        self.names = [columns.names[column] for column in columns.features]
        if schema.is_hashed:
            self.indices = hashing.hash_names(self.names, _bits(schema)).astype(np.int32)
        else:
            self.indices = np.array([schema.index(name) for name in self.names], np.int32)
        values = _values_of(pa, arrow_schema)
        self.texts = [j for j, column in enumerate(columns.features) if values[column] == "text"]
        # Numeric columns are read in the order of their indices, so that rows need no sorting.
        by_index = np.argsort(self.indices, kind="stable")
        self.sorted_indices = self.indices[by_index]
        self.is_sorted = not self.texts and bool(np.all(np.diff(self.sorted_indices) > 0))
        order = by_index.tolist() if self.is_sorted else range(len(self.names))
        texts = set(self.texts)
        self.numbers = [j for j in order if j not in texts]
        self.y, self.weight = columns.y if labelled else None, columns.weight
        self.is_y_number = (
            self.y is not None and schema.task != "multiclass" and values[self.y] != "text"
        )
        # Columns of one matrix: numeric features, then the weight, then the label.
        self.matrix = [columns.features[j] for j in self.numbers]
        self.matrix += [] if self.weight is None else [self.weight]
        self.matrix += [self.y] if self.y is not None and self.is_y_number else []
        types = arrow_schema.types
        self.are_float64 = all(types[column] == pa.float64() for column in self.matrix)
        self.may_be_long = [] if self.are_float64 else self._long_integers(arrow_schema)
        """Columns of the matrix whose numbers may be integers that no float holds."""

    def fits(self, arrow_schema: Any, columns: TableColumns) -> bool:
        """Is this the layout of a table with these columns, perhaps of another stream?"""
        return columns == self.columns and bool(arrow_schema.equals(self._arrow_schema))

    def _long_integers(self, arrow_schema: Any) -> list[tuple[int, int]]:
        of, columns = self.pa.types, []
        for column_index, column in enumerate(self.matrix):
            kind = arrow_schema.types[column]
            kind = kind.value_type if of.is_dictionary(kind) else kind
            if column != self.weight and (of.is_int64(kind) or of.is_uint64(kind)):
                columns.append((column_index, column))
        return columns


class _Columns:
    """Columns of one record batch as arrays."""

    def __init__(self, layout: _Layout, table: Any) -> None:
        self._layout, self._pa, self._schema = layout, layout.pa, layout.row_schema
        n = table.num_rows
        self.is_good = np.ones(n, np.bool_)
        """(n,) bool: rows without a null, a number out of range, or an unknown label."""
        self._texts: dict[int, tuple[list[str], np.ndarray, np.ndarray]] = {}
        """Text column -> distinct names NAME=TEXT; per row: number of its name, feature index."""
        for j in layout.texts:
            column = table.column(layout.columns.features[j])
            self._texts[j] = self._read_texts(column, layout.names[j])
        matrix = self._matrix(table.select(layout.matrix), n, layout.are_float64)
        self._check_integers(table, matrix)
        d = len(layout.numbers)
        if layout.is_sorted:
            self._x = np.ascontiguousarray(matrix[:, :d])
        else:
            self._x = np.ones((n, len(layout.names)))
            self._x[:, layout.numbers] = matrix[:, :d]
            self._row_indices = np.tile(layout.indices, (n, 1))
            for j, (_, _, indices) in self._texts.items():
                self._row_indices[:, j] = indices
        # A NaN makes both comparisons false.
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
        """Multiclass: the class of each code in `_labels`."""
        if layout.is_y_number:
            self._read_numbers_of_labels(matrix[:, -1])
        elif layout.y is not None:
            self._read_kinds_of_labels(table.column(layout.y))

    def _check_integers(self, table: Any, matrix: np.ndarray) -> None:
        """Mark rows with an integer beyond 2^53; 2^53 + 1 is 2^53 as a float."""
        for column_index, column in self._layout.may_be_long:
            sizes = np.abs(matrix[:, column_index])
            self.is_good &= ~(sizes > EXACT)
            for i in np.flatnonzero(sizes == EXACT).tolist():
                self.is_good[i] &= abs(table.column(column)[i].as_py()) == EXACT

    def batch(self) -> Batch:
        """The valid rows."""
        x, labels, weights = self._x, self._labels, self._weights
        if not self.is_good.all():
            x, labels, weights = x[self.is_good], labels[self.is_good], weights[self.is_good]
        classes: tuple[str, ...] = ()
        if self._class_of:
            labels, classes = class_names.class_indices(
                [str(self._class_of[code]) for code in labels.tolist()]
            )
        if self._layout.is_sorted:
            entries = self._sorted_rows(x)
        else:
            rows = self._merged_rows(np.flatnonzero(self.is_good))
            entries = rows.indptr, rows.indices, rows.values
        return Batch.of_checked(*entries, labels, weights, self._schema.dim, classes)

    def _sorted_rows(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """indptr, indices and values of rows whose indices increase from column to column."""
        n, d = x.shape
        indices = self._layout.sorted_indices
        if x.all():  # without a copy
            return np.arange(n + 1) * d, np.tile(indices, n), x.reshape(-1)
        rows = Batch.from_dense(x)
        return rows.indptr, indices[rows.indices], rows.values

    def _merged_rows(self, rows: np.ndarray) -> Batch:
        """Rows with features in any order; values of equal indices are added.

        Raises InvalidRow for a sum above 1e100.
        """
        pointers = np.arange(len(rows) + 1) * self._x.shape[1]
        indices, values = self._row_indices[rows].ravel(), self._x[rows].ravel()
        return Batch.from_csr(pointers, indices, values, dim=self._schema.dim, sum_duplicates=True)

    def _check_sums(self) -> None:
        """Mark rows with a sum of equal indices above 1e100; tries rows of large values only."""
        largest = np.abs(self._x).max(axis=1, initial=0)
        for i in np.flatnonzero(self.is_good & (largest > LARGEST / self._x.shape[1])).tolist():
            try:
                self._merged_rows(np.array([i]))
            except InvalidRow:
                self.is_good[i] = False

    def names(self, rows: np.ndarray) -> list[tuple[int, str]]:
        """New (index, name) pairs of these rows, in the order of their first use."""
        if not self._schema.collects_names:
            return []
        entries: list[tuple[int, int, int, str]] = []
        numbers = [(j, name) for j, name in enumerate(self._layout.names) if j not in self._texts]
        for j, name in self._schema.unjournalled(numbers):
            values = self._x[rows, self._layout.numbers.index(j) if self._layout.is_sorted else j]
            for row in np.flatnonzero(values)[:1].tolist():
                entries.append((row, j, int(self._layout.indices[j]), name))
        for j in self._texts:
            shown, codes, indices = self._texts[j]
            kinds, at = np.unique(codes[rows], return_index=True)
            for kind, row in zip(kinds.tolist(), at.tolist(), strict=True):
                entries.append((row, j, int(indices[rows[row]]), shown[kind]))
        return self._schema.unjournalled([(index, name) for _, _, index, name in sorted(entries)])

    def _matrix(self, table: Any, n: int, are_float64: bool) -> np.ndarray:
        """Numbers and bools as float64 (n, columns) in Fortran order; NaN for a null.

        `Array.to_numpy` is avoided, because it imports pandas if installed, which takes 0.5 s.
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
        # Row-major order takes twice as long.
        matrix: np.ndarray = table.to_tensor(null_to_nan=True, row_major=False).to_numpy()
        return matrix

    def _coded(self, column: Any) -> tuple[list[Any], np.ndarray]:
        """Distinct values of a column, None last, and the code of each row's value."""
        if self._pa.types.is_string_view(column.type):
            column = column.cast(self._pa.large_string())
        if not self._pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        dictionary = column.dictionary
        indices = self._pa.RecordBatch.from_arrays([column.indices], [""])
        codes = self._matrix(indices, len(column), False)[:, 0]
        is_null = np.isnan(codes)
        if len(dictionary) > len(column):
            # Many short batches may share a long dictionary: read only what this one uses.
            used, codes = np.unique(np.where(is_null, -1, codes), return_inverse=True)
            n_nulls = int(np.any(is_null))  # -1 is the first
            dictionary = dictionary.take(self._pa.array(used[n_nulls:].astype(np.int64)))
            codes = codes - n_nulls
        kinds = [*dictionary.to_pylist(), None]
        return kinds, np.where(is_null, len(kinds) - 1, codes).astype(np.int64)

    def _read_texts(self, column: Any, name: str) -> tuple[list[str], np.ndarray, np.ndarray]:
        kinds, codes = self._coded(column)
        longest = LONGEST_NAME
        is_good = [kind is not None and len(kind) <= longest for kind in kinds]
        self.is_good &= np.array(is_good)[codes]
        composed = self._schema.composed
        shown = [f"{name}={composed(kind or '')}" for kind in kinds]
        return shown, codes, hashing.hash_names(shown, _bits(self._schema))[codes]

    def _read_numbers_of_labels(self, column: np.ndarray) -> None:
        if self._schema.task == "regression":
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
        if self._schema.task == "multiclass":
            self._labels, self._class_of = codes, labels
        else:
            self._labels = np.array(labels, np.float64)[codes]

    def _label(self, label: Label | None) -> float | str | None:
        """Label for the learner; None for an invalid one."""
        try:
            return self._schema.label(label)
        except BadRow:
            return None


def _bits(schema: RowSchema) -> int:
    return (schema.dim - 1).bit_length()


def _values_of(pa: ModuleType, arrow_schema: Any) -> list[str]:
    """Kind of each column: "integer", "float", "bool", "text" or "other"."""
    of = pa.types
    names: dict[int, str] = {}
    values = []
    for kind in arrow_schema.types:
        if isinstance(kind, pa.DictionaryType):
            kind = kind.value_type
        if kind.id not in names:
            is_text = of.is_string(kind) or of.is_large_string(kind) or of.is_string_view(kind)
            names[kind.id] = (
                ("integer" if of.is_integer(kind) else "")
                or ("float" if of.is_floating(kind) else "")
                or ("bool" if of.is_boolean(kind) else "")
                or ("text" if is_text else "other")
            )
        values.append(names[kind.id])
    return values
