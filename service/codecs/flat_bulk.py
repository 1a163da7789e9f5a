"""Arrays and kernels of flat rows: NDJSON, JSON lists and CSV of models with `columns`.

The kernels read what is common, exactly as ColumnReader does, and stop at any other row. That row
is read by ColumnReader, which also says what is wrong with it.
"""

import numpy as np
from msgspec.structs import replace

from dualstream.service.codecs.parsed_rows import ListedRows, ParsedRows, Rows
from dualstream.service.codecs.row_buffer import RowArrays
from dualstream.service.codecs.row_schema import RowSchema, latest_time
from dualstream.service.codecs.rows_with_ids import listed_with_ids
from dualstream.solvers import Batch
from dualstream.solvers.rows.columns.plan import ColumnPlan
from dualstream.solvers.rows.text.csv import byte_kinds
from dualstream.solvers.rows.text.flat import (
    AT_NUMBERS,
    FULL,
    LATEST,
    LONGEST_NOTES,
    NOTE_NUMBERS,
    SCRATCH_BYTES,
    SPAN_NUMBERS,
    UNKNOWN,
    read_flat_objects,
    read_flat_records,
)
from dualstream.wire.problem_json import RowError

_NAMES_A_BYTE = 2
"""Bytes of new feature names for which there is room, a byte of the body: crosses repeat texts."""
_MORE_NAMES = 1 << 20
_BEGIN = 1


class FlatArrays(RowArrays):
    """Arrays of one body, and of the plan of its columns."""

    has_ids = True

    def __init__(self, schema: RowSchema, labelled: bool, rows: int, body: bytes) -> None:
        names = _NAMES_A_BYTE * len(body) + _MORE_NAMES
        # Of a word of three letters come two features, with pairs of words.
        super().__init__(schema, labelled, rows, len(body) // 2 + 64, names)
        self._body = body
        self._max_nonzeros = schema.limits.nonzeros
        self._given_ids: dict[int, str] = {}
        plan = schema.column_plan
        assert plan is not None
        self.plan: ColumnPlan = plan
        self.at = np.zeros(AT_NUMBERS, np.int64)
        self.id_spans = np.empty(2 * rows, np.int64)
        self.notes = np.zeros(NOTE_NUMBERS, np.int64)
        self.notes[LATEST] = latest_time()
        self.noted = np.empty(LONGEST_NOTES, np.uint8)
        self.spans = np.zeros(SPAN_NUMBERS, np.int64)
        self.scratch = np.zeros(SCRATCH_BYTES, np.uint8)

    def read_objects(self, text: np.ndarray, ascii_only: bool, separator: int) -> bool:
        """Read JSON objects up to the first that ColumnReader must read; False at the end."""
        stopped = _BEGIN
        while stopped == _BEGIN or self.can_go_on(stopped, text):
            stopped = read_flat_objects(
                text, ascii_only, separator, self.label_kind, self.collects_names, -self.dim - 1,
                self._max_nonzeros, *self._arguments(),
            )  # fmt: skip
        return bool(stopped)

    def read_records(
        self, text: np.ndarray, ascii_only: bool, delimiter: int, decimal: str, columns: np.ndarray
    ) -> bool:
        """As `read_objects`, of CSV records; columns (n,) int64 are the nodes of the header."""
        stopped = _BEGIN
        while stopped == _BEGIN or self.can_go_on(stopped, text):
            stopped = read_flat_records(
                text, ascii_only, delimiter, byte_kinds(delimiter), decimal != ".", columns,
                self.label_kind, self.collects_names, -self.dim - 1,
                self._max_nonzeros, *self._arguments(),
            )  # fmt: skip
        return bool(stopped)

    def _arguments(self) -> tuple[np.ndarray, ...]:
        plan = self.plan
        return (
            plan.values, plan.texts, plan.missing_numbers, plan.letters,
            self.indptr, self.indices, self.values, self.labels, self.weights,
            self.row_indices, self.spare, self.held,
            self.journalled, self.seen, self.name_indices, self.name_ends, self.names,
            self.counts, self.label_slots, self.label_ends, self.label_text,
            self.id_spans, self.buffer,
            self.memo, self.notes, self.noted, self.spans, self.scratch, self.at,
        )  # fmt: skip

    def add(self, text: np.ndarray, one: ListedRows, index: int) -> None:
        self.id_spans[2 * self.count : 2 * self.count + 2] = 0
        super().add(text, one, index)
        if self._schema.observes:
            self.weights[self.count - 1] = 1.0  # it is empty already if it does not enter
        if one.ids:
            self._given_ids[self.count - 1] = one.ids[0]

    def parsed_rows(self, errors: list[RowError]) -> ParsedRows:
        parsed = super().parsed_rows(errors)
        reader, observes = self._schema.columns, self._schema.observes
        if observes:
            parsed = replace(parsed, rows=self._inputs_alone(parsed.rows))
        if reader is None or reader.id is None or not (self.labelled or observes):
            return parsed
        ids = self._ids()
        return listed_with_ids(parsed, ids) if ids else parsed

    def _inputs_alone(self, rows: Rows) -> Batch:
        """Rows without features, labels and weights; those of weight 0 are empty."""
        assert isinstance(rows, Batch)
        enters = rows.indices >= self._schema.dim
        for age in self._schema.ages:
            enters |= rows.indices == age
        enters &= np.repeat(rows.weights > 0.0, np.diff(rows.indptr))
        indptr = np.concatenate([[0], np.cumsum(enters)])[rows.indptr]
        unlabelled, weights = np.full(len(rows), Batch.UNLABELLED), np.zeros(len(rows))
        return Batch(
            indptr, rows.indices[enters], rows.values[enters], unlabelled, weights, rows.dim
        )

    def _ids(self) -> dict[int, str]:
        """Ids by rows. Those that kernels read are printable ASCII."""
        begins, ends = self.id_spans.reshape(-1, 2)[: self.count].T
        rows = np.flatnonzero(ends)
        if not len(rows):
            return self._given_ids
        text = self._body.decode("latin-1")  # a character for each byte
        spans = zip(rows.tolist(), begins[rows].tolist(), ends[rows].tolist(), strict=True)
        return {row: text[begin:end] for row, begin, end in spans} | self._given_ids

    def can_go_on(self, stopped: int, text: np.ndarray) -> bool:
        """Make room, or learn the name at which a kernel stopped; False if that does not help."""
        if stopped == FULL:
            self.grow()
            return True
        if stopped != UNKNOWN:
            return False
        owner, start, end = self.at[5:8].tolist()
        return self.plan.add(owner, text[start:end].tobytes().decode())
