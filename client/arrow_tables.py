"""Tables with the Arrow C stream interface -> request bodies, and scores -> a table.

Polars, DuckDB, pyarrow, Ibis and pandas objects have this interface (`__arrow_c_stream__`). A table
is read once, batch by batch, and sent as Arrow streams of about 1 MiB. Boundaries and bytes of the
bodies depend on the rows alone, not on the record batches in which they arrive, so that a repeated
table has the same bodies under the same keys. Needs pyarrow, which is imported on first use.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import msgspec

from dualstream.client.calls import ARROW
from dualstream.client.errors import BadInput
from dualstream.client.rows import Body
from dualstream.wire.chunking.chunks import CHUNK_BYTES
from dualstream.wire.plural import plural
from dualstream.wire.schemas import PredictedMany, join_fields

# Leaves room for the schema, so that the server need not split a body.
PIECE_BYTES = CHUNK_BYTES - 64 * 1024
FIRST_ROWS, MAX_ROWS = 1000, 100_000
MAX_VALUES = 1 << 21
"""Values of a piece, fewer than the server's limit; booleans take a bit each."""
_GROWTH = 16
_FILE_ROWS = 10_000
"""Rows that are decoded at once."""


def pyarrow_for(what: str) -> Any:
    """The module pyarrow. Raises BadInput, which begins with `what`, if it is not installed."""
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise BadInput(f"{what} needs pyarrow: pip install 'dualstream[arrow]'") from None
    return pyarrow


def bodies_of_table(table: Any) -> "TableBodies":
    """The bodies of a table. Raises BadInput without pyarrow, or if it is no table."""
    pa, name = pyarrow_for("a table"), "the table"
    try:
        reader = pa.RecordBatchReader.from_stream(table)
    except pa.ArrowException as error:
        raise _unreadable(name, error) from error
    return TableBodies(pa, name, reader.schema, reader)


def bodies_of_file(
    name: str, file: Any, is_parquet: bool, constants: Mapping[str, Any], start: int = 0
) -> Iterator[tuple[Body, int, float]]:
    """The bodies of a Parquet or Arrow file from the row `start`.

    Each has the index of the row after it and the share of the file read so far. `file` is a path
    or a file object. `constants` are columns that each row has, if the file does not have them.
    Raises BadInput without pyarrow, or if the file is damaged or has fewer rows.
    """
    pa = pyarrow_for(f"{name}: a {'Parquet' if is_parquet else 'Arrow'} file")
    share = 0.0

    def batches() -> Iterator[Any]:
        nonlocal share
        for batch, share in record_batches:  # noqa: B007 - the loop below reads the share
            for field, value in zip(added, values, strict=True):
                batch = batch.append_column(field, pa.repeat(value, batch.num_rows))
            yield batch

    try:
        schema, record_batches, row = _parquet(file, start) if is_parquet else _arrow_file(pa, file)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(name, error) from error
    new = {column: value for column, value in constants.items() if column not in schema.names}
    values = [pa.scalar(value) for value in new.values()]
    added = [pa.field(column, value.type) for column, value in zip(new, values, strict=True)]
    for field in added:
        schema = schema.append(field)
    bodies = TableBodies(pa, name, schema, batches())
    bodies.row = row
    bodies.seek(start)
    for body in bodies:
        yield body, bodies.row, share


def _parquet(file: Any, start: int) -> tuple[Any, Iterator[tuple[Any, float]], int]:
    """Schema of a file, record batches of its row groups from that of the row `start`, and their
    first row. Each batch has the share of the rows up to its end."""
    import pyarrow.parquet

    opened = pyarrow.parquet.ParquetFile(file)
    count, skipped, first = opened.num_row_groups, 0, 0
    while first < count and skipped + (size := opened.metadata.row_group(first).num_rows) <= start:
        skipped += size
        first += 1

    def batches() -> Iterator[tuple[Any, float]]:
        rows, groups = skipped, range(first, count)
        for batch in opened.iter_batches(batch_size=_FILE_ROWS, row_groups=groups):
            rows += batch.num_rows
            yield batch, rows / max(1, opened.metadata.num_rows)

    return opened.schema_arrow, batches(), skipped


def _arrow_file(pa: Any, file: Any) -> tuple[Any, Iterator[tuple[Any, float]], int]:
    """As `_parquet`, from the first row."""
    opened = pa.ipc.open_file(pa.memory_map(file) if isinstance(file, str) else file)
    count = opened.num_record_batches
    return opened.schema, ((opened.get_batch(at), (at + 1) / count) for at in range(count)), 0


def _unreadable(name: str, error: Exception) -> BadInput:
    return BadInput(f"{name} cannot be read: {error}")


class TableBodies:
    """Iterator of bodies of about PIECE_BYTES, cut from record batches; can skip rows.

    The number of rows of a body follows from the bytes a row of the one before it; a body that is
    too large is halved. Raises BadInput if pyarrow cannot read the rows, naming the table `name`.
    """

    def __init__(self, pa: Any, name: str, schema: Any, batches: Iterable[Any]) -> None:
        self._pa, self._name = pa, name
        fields = [pa.field(field.name, _plain_type(pa, field.type)) for field in schema]
        # The server needs no other metadata: these name the columns of pandas' index.
        kept = {key: text for key, text in (schema.metadata or {}).items() if key == b"pandas"}
        self._schema = pa.schema(fields, kept or None)
        self._batches = iter(batches)
        self._rest: list[Any] = []
        """Record batches before those of the iterator, the next one last."""
        self._last: Any = None
        """The rows of the last body."""
        self._most = max(1, min(MAX_ROWS, MAX_VALUES // max(1, len(fields))))
        self._rows = min(FIRST_ROWS, self._most)
        self._start = 0
        self.row = 0
        """Index of the row after the last body."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Body:
        try:
            self._skip()
            block = self._taken(self._rows)
            if block is None:
                raise StopIteration
            while (size := self._pa.ipc.get_record_batch_size(block)) > PIECE_BYTES:
                half = block.num_rows // 2
                if not half:
                    break
                self._rest.append(block.slice(half))
                block = block.slice(0, half)
            content = self._written(block)
        except (self._pa.ArrowException, OSError) as error:
            raise _unreadable(self._name, error) from error
        fitting = block.num_rows * PIECE_BYTES * 7 // (8 * max(1, size))
        self._rows = max(1, min(fitting, block.num_rows * _GROWTH, self._most))
        self._last = block
        self.row += block.num_rows
        return Body(content, block.num_rows, kind=ARROW)

    def seek(self, row: int) -> None:
        """Continue at this row, of the last body or after it."""
        if row < self.row:
            self._rest.append(self._last.slice(self._last.num_rows - (self.row - row)))
            self.row = row
        self._start = row

    def _skip(self) -> None:
        while self.row < self._start and (batch := self._next()) is not None:
            skipped = min(self._start - self.row, batch.num_rows)
            self._rest.append(batch.slice(skipped))
            self.row += skipped
        if self.row < self._start:
            rows = plural(self.row, "row")
            raise BadInput(
                f"{self._name} has {rows}, but its source is at row {self._start:,};"
                " give the same table, with more rows if it has grown, or another source"
            )

    def _next(self) -> Any:
        """The next record batch that has rows; None after the last one."""
        while self._rest:
            batch = self._rest.pop()
            if batch.num_rows:
                return batch
        return next((batch for batch in self._batches if batch.num_rows), None)

    def _taken(self, rows: int) -> Any:
        """A record batch of the next `rows` rows, or of those that are left."""
        parts = []
        while rows and (batch := self._next()) is not None:
            part = batch.slice(0, rows)
            rows -= part.num_rows
            self._rest.append(batch.slice(part.num_rows))
            parts.append(self._plain(part))
        return self._pa.concat_batches(parts) if parts else None

    def _plain(self, batch: Any) -> Any:
        """The batch with columns of `_plain_type`, whose bytes follow from their values."""
        pa, order = self._pa, None
        columns = []
        for column, field in zip(batch.columns, self._schema, strict=True):
            if column.type != field.type:
                column = _cast(pa, column, field.type)
            elif column.null_count or pa.types.is_boolean(field.type) or field.type.num_fields:
                # Copies only what the values are, not what is in memory under a null.
                order = pa.arange(0, batch.num_rows) if order is None else order
                column = column.take(order)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _written(self, batch: Any) -> bytes:
        sink = self._pa.BufferOutputStream()
        with self._pa.ipc.new_stream(sink, self._schema) as writer:
            writer.write_batch(batch)
        body: bytes = sink.getvalue().to_pybytes()
        return body


def _plain_type(pa: Any, kind: Any) -> Any:
    """The type without dictionaries and views, whose bytes depend on other rows."""
    of = pa.types
    if of.is_dictionary(kind):
        return _plain_type(pa, kind.value_type)
    if of.is_string_view(kind):
        return pa.large_string()
    if of.is_binary_view(kind):
        return pa.large_binary()
    if of.is_list(kind) or of.is_large_list(kind):
        made = pa.list_ if of.is_list(kind) else pa.large_list
        return made(kind.value_field.with_type(_plain_type(pa, kind.value_type)))
    if of.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(pa, field.type)) for field in kind])
    return kind


def _cast(pa: Any, column: Any, kind: Any) -> Any:
    if pa.types.is_dictionary(column.type):
        # Texts of Polars' categories are views, which pyarrow decodes in two steps only.
        values = column.dictionary.cast(kind)
        return pa.DictionaryArray.from_arrays(column.indices, values).dictionary_decode()
    return column.cast(kind)


def scores_table(answers: Sequence[PredictedMany]) -> Any:
    """A pyarrow Table with score, label and probability, one row for each row that was sent.

    It has columns for the fields of features, too. Refused rows have nulls. Labels, and sets, of
    several types are JSON texts.
    """
    pa = pyarrow_for("a table")
    scores = [score for one in answers for score in one.scores]
    chances = [
        chance for one in answers for chance in (one.probabilities or [None] * len(one.scores))
    ]
    labels = [label for one in answers for label in one.labels]
    columns = {
        "score": pa.array(scores, pa.float64()),
        "label": _array(pa, labels),
        "probability": pa.array(chances, pa.float64()),
    }
    join_fields(answers)
    for name, values in answers[0].fields_of_features().items():
        columns[name] = _array(pa, values)
    return pa.table(columns)


def _array(pa: Any, values: Sequence[Any]) -> Any:
    """An Arrow array; JSON texts if the values have several types."""
    try:
        return pa.array(values)
    except pa.ArrowException:
        return pa.array([_text_of(value) for value in values], pa.string())


def _text_of(label: Any) -> str | None:
    is_text = label is None or isinstance(label, str)
    return label if is_text else msgspec.json.encode(label).decode()
