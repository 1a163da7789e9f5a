"""Parsed rows of a request body: valid rows in CSR layout, invalid rows as errors."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from dualstream.service.codecs.row_schema import (
    BadRow,
    Features,
    Label,
    RowSchema,
    pointer_step,
    too_many_nonzeros,
    unescaped_step,
)
from dualstream.service.codecs.text_fields import label_of
from dualstream.solvers import BadColumn, Batch, ColumnReader
from dualstream.solvers.rows import class_names
from dualstream.solvers.rows.columns.reader import ColumnRow
from dualstream.solvers.rows.served_parts import joined_parts
from dualstream.solvers.rows.text.name_order import order_by_entries
from dualstream.wire.problem_json import Problem, RowError, quoted
from dualstream.wire.text_values import nfc


class ListedRows(msgspec.Struct):
    """Rows as Python lists in CSR layout, for small requests.

    A group of requests is converted to arrays once, because one conversion per request costs more.
    `indptr` and `indices` count from 0, indices are sorted within a row, values are non-zero. The
    row schema has checked every row.
    """

    indptr: list[int]
    indices: list[int]
    values: list[float]
    labels: list[float] | list[str]
    """Class texts if the task is multiclass."""
    weights: list[float]
    dim: int
    names: list[tuple[int, str]] = []
    """(index, name) pairs of features that the journal may not hold yet."""
    name_ends: list[int] = []
    """End of each row's names in `names`; empty without names, and if no row has an id."""
    ids: dict[int, str] = {}
    """Row -> id, of the rows that have one."""
    served_scores: list[float] = []
    """Scores that late-labelled rows were served with; empty for other rows."""
    served_parts: list[tuple[float, ...]] = []
    """As in Batch; of any number of parts, also none. Empty if no row has parts."""
    replaced: list[float] | list[str] = []
    """Labels before, of rows that are learned again; NaN, or an empty text, for others. Empty if
    there are none."""

    def __len__(self) -> int:
        return len(self.labels)

    def names_of(self, first: int, stop: int) -> list[tuple[int, str]]:
        """New names in rows `first` to `stop` - 1."""
        if not self.names:
            return []
        return self.names[self.name_ends[first - 1] if first else 0 : self.name_ends[stop - 1]]


Rows = ListedRows | Batch
_NO_INPUTS: Mapping[int, float] = {}


def as_batch(pieces: Sequence[Rows]) -> Batch:
    """Concatenate rows of equal width to one Batch."""
    if len(pieces) == 1:
        return _as_arrays(pieces[0])
    listed = [piece for piece in pieces if isinstance(piece, ListedRows)]
    if len(listed) < len(pieces):
        return Batch.concat([_as_arrays(piece) for piece in pieces])
    offsets = accumulate((len(piece.indices) for piece in listed), initial=0)
    indptr = [0]
    for piece, offset in zip(listed, offsets, strict=False):
        indptr += [end + offset for end in piece.indptr[1:]]
    flat = chain.from_iterable
    return _as_arrays(
        ListedRows(
            indptr,
            list(flat(piece.indices for piece in listed)),
            list(flat(piece.values for piece in listed)),
            list(flat(piece.labels for piece in listed)),  # type: ignore[arg-type]
            list(flat(piece.weights for piece in listed)),
            listed[0].dim,
            served_scores=list(
                flat(piece.served_scores or [Batch.UNLABELLED] * len(piece) for piece in listed)
            )
            if any(piece.served_scores for piece in listed)
            else [],
            served_parts=list(flat(piece.served_parts or [()] * len(piece) for piece in listed))
            if any(piece.served_parts for piece in listed)
            else [],
            replaced=_joined_replaced(listed),
        )
    )


def _joined_replaced(pieces: Sequence[ListedRows]) -> list[float] | list[str]:
    if not any(piece.replaced for piece in pieces):
        return []
    labels = next(piece.replaced for piece in pieces if piece.replaced)
    none = "" if isinstance(labels[0], str) else Batch.UNLABELLED
    joined = [label for piece in pieces for label in piece.replaced or [none] * len(piece)]
    return joined  # type: ignore[return-value]


def _as_arrays(rows: Rows) -> Batch:
    if isinstance(rows, Batch):
        return rows
    labels, replaced, classes = label_columns(rows.labels, rows.replaced or None)
    columns = (
        np.array(rows.indptr, np.int64),
        np.array(rows.indices, np.int32),
        np.array(rows.values, np.float64),
        labels,
        np.array(rows.weights, np.float64),
    )
    if rows.served_scores:  # read from the store, whose data may be damaged: check again
        columns_of_parts = [np.array([parts]) for parts in rows.served_parts]
        parts = joined_parts(columns_of_parts, [1] * len(columns_of_parts))
        scores = np.array(rows.served_scores, np.float64)
        return Batch(*columns, rows.dim, classes, scores, parts, replaced)
    return Batch.of_checked(*columns, rows.dim, classes)


def label_columns(
    labels: Sequence[float | str] | np.ndarray, replaced: Sequence[float | str] | np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None, tuple[str, ...]]:
    """Labels, the labels that they replace, and classes of a Batch."""
    if replaced is None or not isinstance(replaced[0], str):
        column, classes = labels_and_classes(labels)
        return column, None if replaced is None else np.asarray(replaced, np.float64), classes
    texts = [text or Batch.UNLABELLED for text in replaced]
    whole, classes = labels_and_classes([*labels, *texts])
    return whole[: len(labels)], whole[len(labels) :], classes


def labels_and_classes(
    labels: Sequence[float | str] | np.ndarray,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels and classes of a Batch, from numbers or class texts."""
    if len(labels) and (isinstance(labels[0], str) or labels[0] != labels[0]):
        if {str} != set(map(type, labels)):  # some rows were observed
            return _some_observed(labels)
        return class_names.class_indices([str(text) for text in labels])
    return np.asarray(labels, np.float64), ()


def _some_observed(
    labels: Sequence[float | str] | np.ndarray,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """As `labels_and_classes`, of rows whose label is NaN if they were observed."""
    texts = [label for label in labels if isinstance(label, str)]
    if not texts:
        return np.asarray(labels, np.float64), ()
    class_ids, classes = class_names.class_indices(texts)
    column = np.full(len(labels), np.nan)
    column[[isinstance(label, str) for label in labels]] = class_ids
    return column, classes


def without_rows(schema: RowSchema) -> ListedRows:
    """No rows, of the schema's width."""
    return ListedRows([0], [], [], [], [], schema.row_width)


def class_texts(rows: Rows) -> list[float] | list[str] | np.ndarray:
    """Labels in the journal's form: numbers, or class texts."""
    if isinstance(rows, Batch) and rows.classes:
        return [rows.classes[int(index)] for index in rows.labels.tolist()]
    return rows.labels


def inputs_alone(schema: RowSchema, rows: ListedRows) -> ListedRows:
    """What enters the past of these rows: their inputs and times, without label and weight.

    Rows of weight 0 become empty, and empty rows enter nothing.
    """
    entering = without_rows(schema)
    for row in range(len(rows)):
        begin, end = rows.indptr[row : row + 2] if rows.weights[row] else (0, 0)
        for at in range(begin, end):
            if schema.enters(rows.indices[at]):
                entering.indices.append(rows.indices[at])
                entering.values.append(rows.values[at])
        entering.indptr.append(len(entering.indices))
    entering.labels = [Batch.UNLABELLED] * len(rows)
    entering.weights = [0.0] * len(rows)
    return entering


def with_scores(rows: Rows, scores: np.ndarray, served_parts: np.ndarray) -> Rows:
    """Observed rows with scores (n,) and what features keep of them (n, m).

    Empty rows enter nothing, so they have none.
    """
    enters = np.diff(rows.indptr) > 0
    scores = np.where(enters, scores, np.nan)
    served_parts = np.where(enters[:, None], served_parts, np.nan)
    if isinstance(rows, Batch):
        return dataclasses.replace(rows, served=scores, served_parts=served_parts)
    rows.served_scores = scores.tolist()
    rows.served_parts = [tuple(parts) for parts in served_parts.tolist()]
    return rows


class ParsedRows(msgspec.Struct):
    """Result of parsing a request body: valid rows, their indices in the body, errors."""

    rows: Rows
    row_indices: Sequence[int]
    """Index in the body of each valid row."""
    errors: list[RowError] = []
    single: bool = False
    """Is the body one sample, not a list?"""
    id_pointer: str = "/id"
    """JSON pointer of a row's id, with {} for the row's index."""
    batch_names: Sequence[tuple[int, str]] = ()
    """New names of rows that are a Batch; a Batch has no names."""
    warnings: list[str] = []
    """What the client may not mean."""

    @property
    def count(self) -> int:
        """Number of rows in the body, valid and invalid."""
        return len(self.row_indices) + len(self.errors)

    @property
    def labels(self) -> list[float] | list[str]:
        """Labels of the valid rows: numbers, or class texts."""
        labels = class_texts(self.rows)
        return list(labels.tolist()) if isinstance(labels, np.ndarray) else labels

    @property
    def names(self) -> Sequence[tuple[int, str]]:
        """(index, name) pairs of features that the journal may not hold yet."""
        return self.rows.names if isinstance(self.rows, ListedRows) else self.batch_names

    def singles(self) -> "Iterator[ParsedRows]":
        """Each valid row as the only row of a body."""
        rows = self.rows
        columns: list[list[Any]] = [
            column.tolist() if isinstance(column, np.ndarray) else column
            for column in (rows.indptr, rows.indices, rows.values, self.labels, rows.weights)
        ]
        indptr, indices, values, labels, weights = columns
        ids = rows.ids if isinstance(rows, ListedRows) else {}
        name_at = dict(self.names)
        for row, (first, stop) in enumerate(pairwise(indptr)):
            features = indices[first:stop]
            names = [(at, name_at[at]) for at in features if at in name_at] if name_at else []
            single = ListedRows(
                [0, stop - first],
                features,
                values[first:stop],
                labels[row : row + 1],
                weights[row : row + 1],
                rows.dim,
                names,
                [len(names)],
                {0: ids[row]} if row in ids else {},
            )
            yield ParsedRows(single, [0], single=True)


class RowsBuilder:
    """Builds ParsedRows row by row.

    With `waiting`, rows wait for their labels and need unique ids, by which labels find them.
    """

    def __init__(self, schema: RowSchema, labelled: bool, waiting: bool = False) -> None:
        self._schema = schema
        self._labelled = labelled
        self._max_nonzeros = schema.limits.nonzeros
        self._waiting = waiting
        self._ids: set[str] = set()
        self._name_at: dict[int, str] = {}
        """The first name of each index in the body, as kernels keep it."""
        self._rows = without_rows(schema)
        self._row_indices: list[int] = []
        self._errors: list[RowError] = []

    def refuse(self, index: int, pointer: str, reason: str, line: int | None = None) -> None:
        """Add an error for row `index` of the body."""
        self._errors.append(RowError(index, pointer, reason, line))

    def add(
        self,
        index: int,
        x: Features,
        y: Label | None | UnsetType,
        weight: float | UnsetType = UNSET,
        id_: str | int | None | UnsetType = UNSET,
        inputs: Mapping[int, float] = _NO_INPUTS,
    ) -> None:
        """Validate and add row `index` of the body. Raises BadRow, and adds nothing then."""
        schema, rows = self._schema, self._rows
        if y is UNSET:
            if self._labelled:
                raise BadRow("/y", "the label `y` is missing")
            y = None
        if weight is UNSET:
            weight = 1.0
        if id_ is UNSET:
            id_ = None
        indices, values, names = schema.features(x)
        if len(indices) > self._max_nonzeros:
            raise BadRow("/x", too_many_nonzeros(len(indices), self._max_nonzeros))
        if inputs:
            schema.check_inputs(inputs)
        label = schema.label(y) if self._labelled else 0.0
        if weight != 1.0:
            schema.check_weight(weight)
        if self._waiting:
            rows.ids[len(rows)] = self._new_id(id_)
        elif id_ is not None and self._labelled:
            rows.ids[len(rows)] = schema.id(id_)
        if (self._labelled or self._waiting) and schema.is_hashed:
            rows.names += self._names_by_index(names, set(indices)) if names else names
            rows.name_ends.append(len(rows.names))
        rows.weights.append(weight)
        rows.labels.append(label)  # type: ignore[arg-type]
        rows.indices += indices
        rows.values += values
        if inputs:
            self._add_inputs(inputs)
        rows.indptr.append(len(rows.indices))
        self._row_indices.append(index)

    def _names_by_index(
        self, names: list[tuple[int, str]], indices: set[int]
    ) -> list[tuple[int, str]]:
        """New names of a row's features, in the order of `with_names_by_index`."""
        name_at = self._name_at
        return sorted({(at, name_at.setdefault(at, name)) for at, name in names if at in indices})

    def add_flat(self, index: int, row: Mapping[str, Any]) -> None:
        """As `add`, for a row that the model's `columns` read. Raises BadRow."""
        reader = self._schema.columns
        assert reader is not None
        try:
            read = reader.read(row)
            weight: float | UnsetType = UNSET
            if read.weight is not None:
                self._schema.check_weight(read.weight)
                weight = float(read.weight)
            if self._schema.observes:
                self._add_observed(index, read, enters=weight != 0.0)
                return
            label = read.label if self._labelled else None
            if self._labelled:
                label = self._flat_label(reader, label)
            self.add(index, read.features, label, weight, read.id, read.inputs)
        except BadColumn as bad:
            raise BadRow(_pointer_in(row, reader, bad.column), bad.reason) from None
        except BadRow as bad:
            column = _column_of(reader, bad.pointer)
            raise BadRow(_pointer_in(row, reader, column), bad.reason) from None

    def _add_observed(self, index: int, read: ColumnRow, enters: bool) -> None:
        """Add a row that has inputs alone, or nothing: without a label, and of weight 0."""
        schema, rows = self._schema, self._rows
        schema.check_inputs(read.inputs)
        ages: list[tuple[int, float]] = []
        if schema.ages:
            indices, values, _ = schema.features(read.features)
            entries = zip(indices, values, strict=True)
            ages = [entry for entry in entries if entry[0] in schema.ages]
        if read.id is not None:
            rows.ids[len(rows)] = schema.id(read.id)
        rows.weights.append(0.0)
        rows.labels.append(Batch.UNLABELLED)  # type: ignore[arg-type]
        if enters:
            for at, value in ages:
                rows.indices.append(at)
                rows.values.append(value)
            self._add_inputs(read.inputs)
        rows.indptr.append(len(rows.indices))
        self._row_indices.append(index)

    def _add_inputs(self, inputs: Mapping[int, float]) -> None:
        for at in sorted(inputs):
            self._rows.indices.append(at)
            self._rows.values.append(inputs[at])

    def _flat_label(self, reader: ColumnReader, label: Any) -> Label:
        if label is None:
            raise BadRow("/y", f"the label column {quoted(reader.label)} is missing")
        is_named = self._schema.class_names is not None
        if isinstance(label, str):
            return label_of(label, is_named)
        if isinstance(label, bool | int | float):
            return reader.class_of(label) if is_named else label
        raise BadRow("/y", "the label must be one value: a text, a number or a boolean")

    def _new_id(self, text: str | int | None) -> str:
        if text is None:
            raise BadRow(
                "/id", "the id is missing; `remember=true` needs one to match the label later"
            )
        id_ = self._schema.id(text)
        if id_ in self._ids:
            raise BadRow("/id", f"the id {id_!r} is used twice in the request")
        self._ids.add(id_)
        return id_

    @property
    def listed(self) -> ListedRows:
        """Valid rows so far."""
        return self._rows

    def build(self, single: bool = False, id_pointer: str = "/id") -> ParsedRows:
        rows = self._rows
        if rows.names and not rows.ids:  # one record has all rows: it names a feature once
            rows.names, rows.name_ends = list(dict.fromkeys(rows.names)), []
        return ParsedRows(rows, self._row_indices, self._errors, single, id_pointer)


def _column_of(reader: ColumnReader, pointer: str) -> str:
    """The column of a pointer within a row in explicit form."""
    roles = {"/y": reader.label, "/weight": reader.weight, "/id": reader.id}
    if pointer in roles:
        return roles[pointer] or pointer[1:]
    return unescaped_step(pointer.removeprefix("/x").removeprefix("/"))


def _pointer_in(row: Mapping[str, Any], reader: ColumnReader, column: str) -> str:
    """JSON pointer of a column in a row as it was sent: `user.age` may be /user/age or /x/user/age.

    A column that the row does not have gets the pointer at which the row could have it.
    """
    if not column:
        return ""
    if not reader.is_explicit(row):
        steps = _steps_to(row, column) or [column]
    elif (inner := _steps_to(row["x"], column)) is not None:
        steps = ["x", *inner]
    elif column in row:
        steps = [column]
    else:
        roles = {reader.label: "y", reader.weight: "weight", reader.id: "id"}
        steps = [roles[column]] if column in roles else ["x", column]
    return "".join(f"/{pointer_step(step[:50])}" for step in steps)


def _steps_to(row: Mapping[str, Any], column: str) -> list[str] | None:
    """Names from a row down to a column; None if the row does not have it."""
    for name, value in row.items():
        composed = nfc(name)
        if composed == column:
            return [name]
        if isinstance(value, dict) and column.startswith(f"{composed}."):
            inner = _steps_to(value, column[len(composed) + 1 :])
            if inner is not None:
                return [name, *inner]
    return None


def with_names_by_index(
    batch: Batch, names: Sequence[tuple[int, str]]
) -> Sequence[tuple[int, str]]:
    """Names of a batch's features, in the order of the rows and of their indices.

    The state must not depend on the reader, nor on which rows are read together: a name comes with
    the first row that has its feature. `names` has no index twice.
    """
    if not names:
        return names
    indices = np.array([index for index, _ in names], np.int64)
    slots = 1 << (2 * len(names)).bit_length()
    order = np.empty(len(names), np.int64)
    table, numbers = np.zeros(slots, np.int32), np.zeros(slots, np.int64)
    count = order_by_entries(batch.indices, indices, table, numbers, order)
    return [names[name] for name in order[:count].tolist()]


# Limits are checked before rows are journalled. Journalled rows are applied without limits, so that
# processes with other settings reach the same state.


def check_rows(count: int, limit: int | None) -> None:
    """Raise Problem 413 if a request has more rows, valid or not, than `limit`."""
    if limit is not None and count > limit:
        detail = f"the request has more than {limit} rows; split it into smaller requests"
        raise Problem(413, "too-many-rows", detail)


def without_long_rows(schema: RowSchema, parsed: ParsedRows) -> ParsedRows:
    """Move rows with too many non-zeros to the errors."""
    rows, limit = parsed.rows, schema.limits.nonzeros
    # RowsBuilder has checked listed rows, and the kernels of flat rows theirs, without inputs.
    if not isinstance(rows, Batch) or schema.columns is not None or len(rows.indices) <= limit:
        return parsed
    sizes = np.diff(rows.indptr)
    if int(sizes.max()) <= limit:
        return parsed
    row_indices = np.asarray(parsed.row_indices)
    too_long = [
        RowError(int(row_indices[row]), "/x", too_many_nonzeros(int(sizes[row]), limit))
        for row in np.flatnonzero(sizes > limit).tolist()
    ]
    good = np.flatnonzero(sizes <= limit)
    kept = rows.take(good)
    return replace(
        parsed,
        rows=kept,
        row_indices=row_indices[good].tolist(),
        errors=sorted([*parsed.errors, *too_long], key=lambda error: error.index),
        batch_names=with_names_by_index(kept, parsed.batch_names),
    )
