"""Batch: labelled and weighted rows in compressed sparse row (CSR) layout.

Every kernel reads this layout. Rows are checked once, on construction: sorted by index, without
zeros, all numbers finite.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import InvalidRow, ShapeMismatch
from dualstream.solvers.jit import (
    F8,
    I4,
    I8,
    RO_F8,
    RO_F8_2D,
    RO_I4,
    RO_I8,
    Floats,
    Indices,
    Ints,
    kernel,
)
from dualstream.solvers.rows.scalar import sort_row
from dualstream.solvers.rows.served_parts import joined_parts
from dualstream.solvers.rows.shared_ones import are_shared_ones
from dualstream.solvers.rows.text import libsvm
from dualstream.solvers.rows.text.libsvm import BadLine
from dualstream.solvers.rows.text.tokens import LARGEST

MAX_DIM = 2**31 - 2

# Comparing dtype objects takes a fraction of the time that comparing types takes.
_INT64, _INT32, _FLOAT64 = (np.dtype(each) for each in (np.int64, np.int32, np.float64))

# Faults of a row.
_LOW, _HIGH, _TWICE, _NUMBER, _LABEL, _WEIGHT, _ZERO, _ORDER, _POINTERS = range(1, 10)
_REASONS = {
    _LOW: "index {at} is below 1",
    _HIGH: "index {at} is above {dim}",
    _TWICE: "index {at} is duplicated",
    _NUMBER: "the number at index {at} is not finite or beyond 1e100",
    _LABEL: "the label is not finite or beyond 1e100",
    _WEIGHT: "the weight is negative, not finite or beyond 1e100",
    _ZERO: "index {at} holds a zero",
    _ORDER: "indices do not increase at {at}",
    _POINTERS: "the row pointers do not fit the entries",
}


ROWS = tuple[RO_I8, RO_I4, RO_F8, RO_F8, RO_F8]
"""Rows as one argument of kernels: `Batch.arrays`."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """n rows of width `dim` in CSR layout, with labels and weights.

    Made by `from_dense`, `from_csr` or `from_libsvm`. The constructor requires arrays in the
    documented form and raises InvalidRow or ShapeMismatch otherwise. `of_checked` checks nothing.
    Learners may keep references to the arrays, so the arrays must not change afterwards.
    """

    indptr: Ints
    """(n + 1,): row i holds the entries indptr[i] to indptr[i + 1]; indptr[0] = 0."""
    indices: Indices
    """(nnz,), from 0, strictly increasing within a row."""
    values: Floats
    """(nnz,), finite, none of them 0."""
    labels: Floats
    """(n,); NaN for a missing label."""
    weights: Floats
    """(n,), finite, >= 0."""
    dim: int
    classes: tuple[str, ...] = ()
    """If not empty, each label is an index into `classes`, the names of the rows' classes."""
    served: Floats | None = None
    """(n,): scores that rows with late labels were served with; NaN for other rows."""
    served_parts: Floats | None = None
    """(n, m): what else these rows kept when they were served; NaN for other rows. Of classes:
    loss, log-loss and mistake (1 or 0). Of a portfolio: see portfolio/late_kernels.py. In records
    the columns of a server's features come first; learners do not get them."""
    replaced: Floats | None = None
    """(n,): of rows that are learned again with another label, the label before; else NaN."""

    UNLABELLED: ClassVar[float] = float("nan")

    def __post_init__(self) -> None:
        n = len(self.labels)
        for name, dtype, shape in (
            ("indptr", _INT64, (n + 1,)),
            ("indices", _INT32, None),
            ("values", _FLOAT64, self.indices.shape),
            ("labels", _FLOAT64, (n,)),
            ("weights", _FLOAT64, (n,)),
            ("served", _FLOAT64, (n,)),
            ("served_parts", _FLOAT64, (n, _width(self.served_parts))),
            ("replaced", _FLOAT64, (n,)),
        ):
            array = getattr(self, name)
            if array is None and name in ("served", "served_parts", "replaced"):
                continue
            column = _column(array, dtype)
            if (column.ndim != 1 and shape is None) or (
                shape is not None and column.shape != shape
            ):
                raise ShapeMismatch(f"{name} has shape {column.shape}, expected {shape}")
            if column is not array:
                object.__setattr__(self, name, column)
        self._check_numbers()

    def _check_numbers(self) -> None:
        pointers, labels, weights, dim = self.indptr, self.labels, self.weights, self.dim
        # Shared ones are valid by construction, and most journalled rows hold nothing else.
        values = _NO_VALUES if are_shared_ones(self.values) else self.values
        if not are_good(pointers, self.indices, values, labels, weights, dim):
            row, fault, at = first_bad_row(
                pointers, self.indices, self.values, labels, weights, dim
            )
            if row >= 0:
                raise InvalidRow(row, _reason(fault, at, dim))
        if self.classes:
            _check_classes(labels, self.classes)
        if self.replaced is not None:
            _check_replaced(self.replaced, self.classes)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def arrays(self) -> ROWS:
        """Entries, labels and weights, as kernels receive them."""
        return self.indptr, self.indices, self.values, self.labels, self.weights

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return len(self.values)

    @property
    def longest(self) -> int:
        """Number of entries of the longest row."""
        if len(self) == 1:
            return len(self.values)
        return int(np.diff(self.indptr).max(initial=0))

    def check_width(self, dim: int) -> None:
        """Raise ShapeMismatch unless the rows have the width of a model."""
        if self.dim != dim:
            raise ShapeMismatch(f"rows of width {self.dim} for a model of width {dim}")

    def __getitem__(self, rows: slice) -> "Batch":
        """A contiguous slice of rows. Columns are views: entries are not copied."""
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise ValueError(f"a batch slice takes a step of 1, got {step}")
        stop = max(start, stop)
        pointers = self.indptr[start : stop + 1]
        first, last = int(pointers[0]), int(pointers[-1])
        return Batch.of_checked(
            pointers - first,
            self.indices[first:last],
            self.values[first:last],
            self.labels[start:stop],
            self.weights[start:stop],
            self.dim,
            self.classes,
            None if self.served is None else self.served[start:stop],
            None if self.served_parts is None else self.served_parts[start:stop],
            None if self.replaced is None else self.replaced[start:stop],
        )

    def take(self, rows: npt.ArrayLike) -> "Batch":
        """Copy of the rows at these indices (or where this mask is true), in this order."""
        indices = np.asarray(rows)
        indices = np.flatnonzero(indices) if indices.dtype == bool else indices.astype(np.int64)
        starts, lengths = self.indptr[indices], np.diff(self.indptr)[indices]
        indptr = np.zeros(len(indices) + 1, np.int64)
        np.cumsum(lengths, out=indptr[1:])
        entries = np.arange(indptr[-1]) + np.repeat(starts - indptr[:-1], lengths)
        return Batch.of_checked(
            indptr,
            self.indices[entries],
            self.values[entries],
            self.labels[indices],
            self.weights[indices],
            self.dim,
            self.classes,
            None if self.served is None else self.served[indices],
            None if self.served_parts is None else self.served_parts[indices],
            None if self.replaced is None else self.replaced[indices],
        )

    def with_labels(self, labels: npt.ArrayLike, classes: tuple[str, ...] = ()) -> "Batch":
        """The same rows with a copy of other labels, which replace none.

        Raises InvalidRow, ShapeMismatch.
        """
        column = np.array(labels, np.float64, order="C")
        if column.shape != self.labels.shape:
            raise ShapeMismatch(f"labels has shape {column.shape}, expected {self.labels.shape}")
        too_large = np.flatnonzero(np.abs(column) > LARGEST)
        if len(too_large):
            raise InvalidRow(int(too_large[0]), _REASONS[_LABEL])
        if classes:
            _check_classes(column, classes)
        columns = (self.indptr, self.indices, self.values, column, self.weights)
        return Batch.of_checked(*columns, self.dim, classes, self.served, self.served_parts)

    def with_rows(self, indptr: Ints, indices: Indices, values: Floats, dim: int) -> "Batch":
        """Other entries with the same labels and weights. Entries are not checked or copied.

        `replaced` goes: only the history needs it, which is the first stage of a learner.
        """
        columns = (indptr, indices, values, self.labels, self.weights)
        return Batch.of_checked(*columns, dim, self.classes, self.served, self.served_parts)

    @classmethod
    def of_checked(
        cls,
        indptr: Ints,
        indices: Indices,
        values: Floats,
        labels: Floats,
        weights: Floats,
        dim: int,
        classes: tuple[str, ...] = (),
        served: Floats | None = None,
        served_parts: Floats | None = None,
        replaced: Floats | None = None,
    ) -> "Batch":
        """Batch of arrays that the caller has already checked against the form above."""
        batch = object.__new__(Batch)
        _put_indptr(batch, indptr)
        _put_indices(batch, indices)
        _put_values(batch, values)
        _put_labels(batch, labels)
        _put_weights(batch, weights)
        _put_dim(batch, dim)
        _put_classes(batch, classes)
        _put_served(batch, served)
        _put_served_parts(batch, served_parts)
        _put_replaced(batch, replaced)
        return batch

    @classmethod
    def of_columns(
        cls,
        indptr: Ints,
        indices: Indices,
        values: Floats,
        labels: Floats,
        weights: Floats,
        dim: int,
        classes: tuple[str, ...] = (),
        served: Floats | None = None,
        served_parts: Floats | None = None,
        replaced: Floats | None = None,
    ) -> "Batch":
        """Batch of arrays whose types and lengths are right; their values are checked here.

        Raises InvalidRow.
        """
        columns = (indptr, indices, values, labels, weights)
        batch = cls.of_checked(*columns, dim, classes, served, served_parts, replaced)
        batch._check_numbers()
        return batch

    @classmethod
    def concat(cls, batches: Sequence["Batch"]) -> "Batch":
        """Concatenate batches of one width.

        Raises ShapeMismatch if widths differ, ValueError for no batch.
        """
        if len(batches) == 1:
            return batches[0]
        if not batches:
            raise ValueError("no batch to concatenate")
        dim = batches[0].dim
        if any(batch.dim != dim for batch in batches):
            widths = sorted({batch.dim for batch in batches})
            raise ShapeMismatch(f"batches of different widths: {widths}")
        pointers, total = [batches[0].indptr], len(batches[0].values)
        for batch in batches[1:]:
            pointers.append(batch.indptr[1:] + total)
            total += len(batch.values)
        labels, replaced, classes = _joined_labels(batches)
        return Batch.of_checked(
            np.concatenate(pointers),
            np.concatenate([batch.indices for batch in batches]),
            np.concatenate([batch.values for batch in batches]),
            labels,
            np.concatenate([batch.weights for batch in batches]),
            dim,
            classes,
            _joined_served([batch.served for batch in batches], batches),
            joined_parts([batch.served_parts for batch in batches], [len(b) for b in batches]),
            replaced,
        )

    @classmethod
    def from_dense(
        cls, x: npt.ArrayLike, y: npt.ArrayLike | None = None, weights: npt.ArrayLike | None = None
    ) -> "Batch":
        """Rows of a matrix (n, dim), or one row (dim,); zeros are dropped.

        Raises InvalidRow for a number that is not finite or beyond 1e100, ShapeMismatch.
        """
        matrix = np.atleast_2d(_column(x, np.float64))
        if matrix.ndim != 2:
            raise ShapeMismatch(f"expected a matrix or a row, got {matrix.ndim} dimensions")
        n, dim = matrix.shape
        indptr = np.zeros(n + 1, np.int64)
        indices, values = np.empty(matrix.size, np.int32), np.empty(matrix.size)
        nnz = drop_zeros(matrix, indptr, indices, values)
        labels = _column_or(y, "labels", n, cls.UNLABELLED)
        weights = _column_or(weights, "weights", n, 1.0)
        return cls(indptr, indices[:nnz], values[:nnz], labels, weights, dim)

    @classmethod
    def from_csr(
        cls,
        indptr: npt.ArrayLike,
        indices: npt.ArrayLike,
        values: npt.ArrayLike,
        y: npt.ArrayLike | None = None,
        weights: npt.ArrayLike | None = None,
        *,
        dim: int,
        sum_duplicates: bool = False,
    ) -> "Batch":
        """Rows in CSR form whose entries may be unsorted and may hold zeros (dropped here).

        `indices` count from 0. With `sum_duplicates`, values of a duplicate index are added in
        their order. Raises ShapeMismatch; InvalidRow for an index out of range, a duplicate index
        without `sum_duplicates`, and a number that is not finite or beyond 1e100.
        """
        pointers = np.array(indptr, np.int64, ndmin=1)
        columns = np.array(indices, np.int64, ndmin=1)
        numbers = np.array(values, np.float64, ndmin=1)
        n = len(pointers) - 1
        _check_pointers(pointers, columns, numbers)
        narrow = np.clip(columns, -1, MAX_DIM).astype(np.int32)
        if sum_duplicates:
            order = np.lexsort((narrow, np.repeat(np.arange(n), np.diff(pointers))))
            narrow, numbers = narrow[order], numbers[order]
            sum_equal_indices(pointers, narrow, numbers)
        faults, at = np.zeros(n, np.int64), np.zeros(n, np.int64)
        nnz = tidy_rows(pointers, narrow, numbers, dim, faults, at)
        bad = np.flatnonzero(faults)
        if len(bad):
            row = int(bad[0])
            raise InvalidRow(row, _reason(int(faults[row]), int(at[row]), dim))
        labels = _column_or(y, "labels", n, cls.UNLABELLED)
        weights = _column_or(weights, "weights", n, 1.0)
        return cls(pointers, narrow[:nnz], numbers[:nnz], labels, weights, dim)

    @classmethod
    def from_libsvm(cls, text: bytes, dim: int, *, labelled: bool = True) -> "LibsvmRows":
        """Parse LIBSVM text into valid rows and a list of bad lines. Never raises.

        With `labelled=False` a first token without a colon is skipped, and labels are NaN.
        """
        return LibsvmRows.parse(text, dim, labelled)


@dataclass(frozen=True, slots=True)
class LibsvmRows:
    """Result of parsing LIBSVM text."""

    batch: Batch
    """The valid rows. A label that is not a number is NaN here."""
    rows: Ints
    """(n,): index of each valid row among the lines that are not blank, from 0."""
    label_spans: Ints
    """(n, 2): byte offsets of the begin and end of each valid row's label in the text."""
    bad: list[BadLine]
    """The bad lines, in order."""

    @classmethod
    def parse(cls, text: bytes, dim: int, labelled: bool) -> Self:
        parsed = libsvm.parse(text, dim, labelled)
        n = len(parsed.labels)
        faults, at = np.zeros(n, np.int64), np.zeros(n, np.int64)
        nnz = len(parsed.values)
        if not parsed.are_tidy:
            nnz = tidy_rows(parsed.indptr, parsed.indices, parsed.values, dim, faults, at)
        faults[(faults == 0) & (np.abs(parsed.labels) > LARGEST)] = _LABEL
        bad = [
            BadLine(
                int(parsed.rows[i]), int(parsed.lines[i]), _reason(int(faults[i]), int(at[i]), dim)
            )
            for i in np.flatnonzero(faults)
        ]
        whole = Batch.of_checked(
            parsed.indptr,
            parsed.indices[:nnz],
            parsed.values[:nnz],
            parsed.labels,
            np.ones(n),
            dim,
            (),
            None,
        )
        if not bad:
            return cls(whole, parsed.rows, parsed.spans, parsed.bad)
        good = np.flatnonzero(faults == 0)
        all_bad = sorted(parsed.bad + bad, key=lambda line: line.row)
        return cls(whole.take(good), parsed.rows[good], parsed.spans[good], all_bad)


def _reason(code: int, at: int, dim: int) -> str:
    return _REASONS[code].format(at=at + 1, dim=dim)


_NO_VALUES = np.empty(0)

# Sets a field although Batch is frozen.
(
    _put_indptr,
    _put_indices,
    _put_values,
    _put_labels,
    _put_weights,
    _put_dim,
    _put_classes,
    _put_served,
    _put_served_parts,
    _put_replaced,
) = (vars(Batch)[name].__set__ for name in Batch.__slots__)


def _check_classes(labels: Floats, classes: tuple[str, ...]) -> None:
    """Raise InvalidRow unless each label is NaN or an index into `classes`."""
    is_place = (labels >= 0) & (labels < len(classes)) & (labels == np.floor(labels))
    wrong = np.flatnonzero(~(is_place | np.isnan(labels)))
    if len(wrong):
        row = int(wrong[0])
        raise InvalidRow(row, f"label {labels[row]!r} is not an index into {len(classes)} classes")


def _width(parts: Floats | None) -> int:
    return parts.shape[1] if parts is not None and parts.ndim == 2 else 0


def _joined_served(columns: Sequence[Floats | None], batches: Sequence[Batch]) -> Floats | None:
    if all(column is None for column in columns):
        return None
    return np.concatenate(
        [
            np.full(len(batch), np.nan) if column is None else column
            for column, batch in zip(columns, batches, strict=True)
        ]
    )


def _check_replaced(replaced: Floats, classes: tuple[str, ...]) -> None:
    """Raise InvalidRow unless each label before is NaN, or as good as a label."""
    if classes:
        _check_classes(replaced, classes)
    wrong = np.flatnonzero(np.abs(replaced) > LARGEST)
    if len(wrong):
        raise InvalidRow(int(wrong[0]), _REASONS[_LABEL])


def _joined_labels(batches: Sequence[Batch]) -> tuple[Floats, Floats | None, tuple[str, ...]]:
    """Labels of all batches, and those that they replace; with classes, as indices into one merged
    tuple of classes."""
    classes, replaced = batches[0].classes, [batch.replaced for batch in batches]
    if all(batch.classes == classes for batch in batches):
        labels = np.concatenate([batch.labels for batch in batches])
        return labels, _joined_served(replaced, batches), classes
    if not all(batch.classes or np.isnan(batch.labels).all() for batch in batches):
        raise ShapeMismatch("cannot concatenate batches with classes and batches without")
    class_index: dict[str, int] = {}
    columns, before = list[Floats](), list[Floats | None]()
    for batch in batches:
        moved = [class_index.setdefault(name, len(class_index)) for name in batch.classes]
        numbers = np.array(moved or [0], np.float64)
        columns.append(moved_labels(batch.labels, numbers))
        before.append(None if batch.replaced is None else moved_labels(batch.replaced, numbers))
    return np.concatenate(columns), _joined_served(before, batches), tuple(class_index)


def moved_labels(labels: Floats, numbers: Floats) -> Floats:
    """numbers[label] of each label; NaN stays."""
    missing = np.isnan(labels)
    at = np.where(missing, 0.0, labels).astype(np.int64)
    return np.where(missing, np.nan, numbers[at])


def _column(values: Any, dtype: Any) -> npt.NDArray[Any]:
    """The array as kernels take it: of this type, contiguous and aligned."""
    if type(values) is np.ndarray and values.dtype == dtype:
        flags = values.flags
        if flags.c_contiguous and flags.aligned:
            return values
    return np.array(values, dtype, order="C")


def _column_or(values: npt.ArrayLike | None, name: str, n: int, default: float) -> Floats:
    if values is None:
        return np.full(n, default)
    column = np.array(values, np.float64, ndmin=1)
    if column.shape != (n,):
        raise ShapeMismatch(f"{name} have shape {column.shape}, expected {(n,)}")
    return column


def _check_pointers(indptr: Ints, indices: Ints, values: Floats) -> None:
    good = (
        len(indptr) > 0
        and indptr[0] == 0
        and indptr[-1] == len(indices) == len(values)
        and bool(np.all(indptr[1:] >= indptr[:-1]))
    )
    if not good:
        raise ShapeMismatch("the row pointers do not fit the entries")


@kernel
def drop_zeros(matrix: RO_F8_2D, indptr: I8, indices: I4, values: F8) -> int:
    """Write the nonzero entries of a dense matrix; return their number."""
    n, dim = matrix.shape
    nnz = 0
    for i in range(n):
        for j in range(dim):
            if matrix[i, j] != 0.0:
                indices[nnz] = j
                values[nnz] = matrix[i, j]
                nnz += 1
        indptr[i + 1] = nnz
    return nnz


@kernel
def sum_equal_indices(indptr: I8, indices: I4, values: F8) -> int:
    """Add the values of equal indices in a sorted row, in order and in place; return the new
    length.

    A term that is not a valid number makes its sum NaN, which is invalid too.
    """
    written = 0
    begin = indptr[0]
    for i in range(indptr.shape[0] - 1):
        end = indptr[i + 1]
        for p in range(begin, end):
            j, x = indices[p], values[p]
            if not abs(x) <= LARGEST:
                x = np.nan
            if p > begin and indices[written - 1] == j:
                values[written - 1] += x
            else:
                indices[written], values[written] = j, x
                written += 1
        begin = end
        indptr[i + 1] = written
    return written


@kernel
def tidy_rows(indptr: I8, indices: I4, values: F8, dim: int, faults: I8, at: I8) -> int:
    """Sort each row, drop its zeros, empty it if it is bad; in place. Returns the number of
    entries.

    faults  (n,) int64  0, or the fault of a row
    at      (n,) int64  the index at fault, from 0
    """
    written = 0
    begin = indptr[0]
    for i in range(indptr.shape[0] - 1):
        end = indptr[i + 1]
        row_start = written
        previous = -1
        is_sorted, is_tidy = True, begin == written
        for p in range(begin, end):
            j, x = indices[p], values[p]
            if j < 0 or j >= dim or not abs(x) <= LARGEST:
                faults[i] = _LOW if j < 0 else _HIGH if j >= dim else _NUMBER
                at[i] = j
                break
            is_sorted = is_sorted and j > previous
            is_tidy = is_tidy and x != 0.0
            previous = j
        if faults[i] == 0 and is_sorted and is_tidy:
            written = end
        elif faults[i] == 0:
            if not is_sorted:
                sort_row(indices, values, begin, end)
            for p in range(begin, end):
                if p > begin and indices[p] == previous:
                    faults[i] = _TWICE
                    at[i] = previous
                    break
                previous = indices[p]
                if values[p] != 0.0:
                    indices[written], values[written] = indices[p], values[p]
                    written += 1
        if faults[i] != 0:
            written = row_start
        begin = end
        indptr[i + 1] = written
    return written


@kernel
def are_good(
    indptr: RO_I8, indices: RO_I4, values: RO_F8, labels: RO_F8, weights: RO_F8, dim: int
) -> bool:
    """Whether every row satisfies the rules of Batch, computed without unpredictable branches.

    Indices may fall only between rows. Then the first and last index of each row bound the others.

    values  (nnz,), or (0,) if they are known to be valid
    """
    n, nnz = indptr.shape[0] - 1, indices.shape[0]
    good = indptr[0] == 0 and indptr[n] == nnz
    for i in range(n):
        good &= indptr[i] <= indptr[i + 1]
    if not good:
        return False
    for i in range(n):
        good &= (not abs(labels[i]) > LARGEST) & (0.0 <= weights[i]) & (weights[i] <= LARGEST)
    for p in range(values.shape[0]):
        good &= (abs(values[p]) <= LARGEST) & (values[p] != 0.0)
    # Unsigned, so that numba skips the check for negative indices; 64 bits wide like the compared
    # numbers, so that LLVM vectorizes the loop by eight.
    falls, one = np.uint32(0), np.uint64(1)
    for p in range(one, np.uint64(nnz)):
        falls = np.uint32(falls + np.uint32(indices[p] <= indices[p - one]))
    between = 0
    for i in range(n):
        begin, end = np.uint64(indptr[i]), np.uint64(indptr[i + 1])
        if begin < end:
            good &= (indices[begin] >= 0) & (indices[end - one] < dim)
            if begin > 0:
                between += indices[begin] <= indices[begin - one]
    return bool(good and falls == between)


@kernel
def first_bad_row(
    indptr: RO_I8, indices: RO_I4, values: RO_F8, labels: RO_F8, weights: RO_F8, dim: int
) -> tuple[int, int, int]:
    """First row that breaks a rule of Batch, the rule, and the index; row -1 if all are valid."""
    n = indptr.shape[0] - 1
    if are_good(indptr, indices, values, labels, weights, dim):
        return -1, 0, 0
    if indptr[0] != 0 or indptr[n] != values.shape[0]:
        return 0, _POINTERS, 0
    for i in range(n):
        if indptr[i + 1] < indptr[i] or indptr[i + 1] > values.shape[0]:
            return i, _POINTERS, 0
        if abs(labels[i]) > LARGEST:
            return i, _LABEL, 0
        if not 0.0 <= weights[i] <= LARGEST:
            return i, _WEIGHT, 0
        previous = -1
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            if j <= previous:
                return i, (_LOW if j < 0 else _ORDER), j
            if not abs(values[p]) <= LARGEST:
                return i, _NUMBER, j
            if values[p] == 0.0:
                return i, _ZERO, j
            previous = j
        if previous >= dim:
            return i, _HIGH, previous
    return -1, 0, 0
