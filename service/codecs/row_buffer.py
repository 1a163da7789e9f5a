"""Preallocated arrays of rows that the parsing kernels fill; exact readers add single rows."""

from itertools import pairwise

import numpy as np

from dualstream.service.codecs.parsed_rows import ListedRows, ParsedRows, with_names_by_index
from dualstream.service.codecs.row_schema import MAX_NAMES, RowSchema
from dualstream.solvers import Batch
from dualstream.solvers.rows.text import tokens
from dualstream.solvers.rows.text.name_cache import MEMO_NUMBERS
from dualstream.wire.problem_json import RowError

# Labels of more bytes are not cached.
_LONGEST_LABEL = 256


class RowArrays:
    """Arrays for up to `rows` rows, `entries` non-zeros and `text` bytes of feature names.

    The public attributes are arguments of the kernels in solvers/rows/text/, which document them.
    """

    has_ids = False
    """Do the kernels read ids of rows?"""

    def __init__(
        self, schema: RowSchema, labelled: bool, rows: int, entries: int, text: int
    ) -> None:
        self._schema = schema
        self.labelled = labelled
        self.dim = -schema.dim if schema.is_hashed else schema.dim
        self.label_kind = tokens.NO_LABELS
        if labelled:
            self.label_kind = tokens.NUMBERS if schema.task == "regression" else tokens.PLACES
        self.indptr = np.empty(rows + 1, np.int64)
        self.indptr[0] = 0
        self.indices, self.values = np.empty(entries, np.int32), np.empty(entries)
        self.labels, self.weights = np.empty(rows), np.empty(rows)
        self.row_indices = np.empty(rows, np.int64)
        self.spare, self.held = np.empty(entries, np.int32), np.empty(entries)
        self.buffer = np.empty(3 * tokens.LONGEST_NAME + 2, np.uint8)
        self.counts = np.zeros(4, np.int64)
        self.at = np.zeros(4, np.int64)
        self.memo = np.zeros(MEMO_NUMBERS, np.int64)
        self._init_names(min(entries, MAX_NAMES), text)
        self._init_labels(min(rows, tokens.LABELS))

    def _init_names(self, limit: int, text: int) -> None:
        self.journalled = self._schema.journalled_indices
        self.collects_names = (
            self.labelled and self._schema.is_hashed and self._schema.collects_names
        )
        if not self.collects_names:
            limit = text = 0
        slots = 1 << max(1, (2 * limit).bit_length())
        self.seen = np.zeros(slots, np.int32)
        self.name_indices = np.empty(limit, np.int32)
        self.name_ends = np.zeros(limit + 1, np.int64)
        self.names = np.empty(text, np.uint8)
        self._new_names: list[tuple[int, str]] = []
        self._drained = 0

    def _init_labels(self, limit: int) -> None:
        # Distinct labels in order of arrival; and the number of the label for each written form.
        self._kinds: dict[float | str, int] = {}
        self._kind_of_written: list[int] = []
        if self.label_kind != tokens.PLACES:
            limit = 0
        self.label_slots = np.full(1 << max(1, (2 * limit).bit_length()), -1, np.int32)
        self.label_ends = np.zeros(limit + 1, np.int64)
        self.label_text = np.empty(limit * 16 + _LONGEST_LABEL, np.uint8)

    @property
    def arguments(self) -> tuple[tokens.ROWS, tokens.SPARE, tokens.NAMES, tokens.LABEL_TABLE]:
        """Rows, scratch, names and labels, as kernels receive them."""
        names = self.journalled, self.seen, self.name_indices, self.name_ends, self.names
        return (
            (self.indptr, self.indices, self.values, self.labels, self.weights),
            (self.spare, self.held),
            (*names, self.counts, self.buffer),
            (self.label_slots, self.label_ends, self.label_text),
        )

    @property
    def count(self) -> int:
        """Number of rows so far."""
        return int(self.at[3])

    def add(self, text: np.ndarray, one: ListedRows, index: int) -> None:
        """Add the one row that an exact reader made of row `index` of the body.

        The kernel recognizes the row's label from now on, if it found the label in `text`.
        """
        row = self.count
        self.weights[row], self.row_indices[row] = one.weights[0], index
        label = one.labels[0]
        if self.label_kind == tokens.PLACES:
            self.labels[row] = self.kind_of(label)
            self._cache_label(text, self._kinds[label])
        else:
            self.labels[row] = label
        self.add_features(one.indices, one.values, one.names)

    def add_features(
        self, indices: list[int], values: list[float], names: list[tuple[int, str]]
    ) -> None:
        """Add a row's features and their new names, which an exact reader found."""
        row = self.count
        start = int(self.indptr[row])
        end = start + len(indices)
        while end > len(self.indices):  # an exact reader may find more features than a byte each
            self.grow()
        self.indices[start:end], self.values[start:end] = indices, values
        self.indptr[row + 1] = end
        self.drain_names()
        self._add_names(names)
        self.at[3] = row + 1

    def grow(self) -> None:
        """Double the room for features."""
        n = len(self.indices)
        self.indices = np.resize(self.indices, 2 * n)
        self.values = np.resize(self.values, 2 * n)
        self.spare, self.held = np.empty(2 * n, np.int32), np.empty(2 * n)

    def learn_label(self, text: np.ndarray, label: float | str) -> bool:
        """Cache the label at which a kernel stopped; False if the cache is full."""
        count = len(self._kind_of_written)
        self.kind_of(label)
        self._cache_label(text, self._kinds[label])
        return len(self._kind_of_written) > count

    def kind_of(self, label: float | str) -> float:
        """Code of a label in `labels` for models with classes: -1 - its number."""
        return -1.0 - self._kinds.setdefault(label, len(self._kinds))

    def _add_names(self, names: list[tuple[int, str]]) -> None:
        for index, name in names:
            slot = tokens.slot_of(self.seen, index)
            if not self.seen[slot] and len(self._new_names) < len(self.name_indices):
                self.seen[slot] = ~index
                self._new_names.append((index, name))

    def drain_names(self) -> None:
        """Decode the new names that a kernel found."""
        first, last = self._drained, int(self.counts[0])
        if first == last:
            return
        ends = self.name_ends[first : last + 1]
        raw = self.names[ends[0] : ends[-1]].tobytes()
        spans = pairwise((ends - ends[0]).tolist())
        indices = self.name_indices[first:last].tolist()
        names = (raw[begin:end].decode() for begin, end in spans)
        self._new_names += zip(indices, names, strict=True)
        self._drained = last
        if last >= MAX_NAMES:  # replicas keep no more names
            self.collects_names = False

    def parsed_rows(self, errors: list[RowError]) -> ParsedRows:
        """All rows and their new names, with these errors."""
        self.drain_names()
        n = self.count
        nnz = int(self.indptr[n])
        labels: np.ndarray = self.labels[:n]
        classes: tuple[str, ...] = ()
        if self.label_kind == tokens.PLACES and n:
            labels, classes = self._resolved(labels.astype(np.int64))
        batch = Batch(
            self.indptr[: n + 1],
            self.indices[:nnz],
            self.values[:nnz],
            labels,
            self.weights[:n],
            self._schema.row_width,
            classes,
        )
        return ParsedRows(
            batch,
            self.row_indices[:n].tolist() if errors else range(n),
            errors,
            batch_names=with_names_by_index(batch, self._new_names),
        )

    def _resolved(self, codes: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
        """Labels and classes of a Batch, from the codes of kernels (>= 0) and of `add` (< 0)."""
        written = np.array([*self._kind_of_written, 0])
        kinds = np.where(codes >= 0, written[np.maximum(codes, -1)], -1 - codes)
        if self._schema.task != "multiclass":
            return np.array(list(self._kinds), np.float64)[kinds], ()
        # Number the classes in order of their first row.
        used, first, of_used = np.unique(kinds, return_index=True, return_inverse=True)
        arrival = np.argsort(first)
        rank = np.empty(len(used))
        rank[arrival] = np.arange(len(used))
        names = list(map(str, self._kinds))
        return rank[of_used], tuple(names[kind] for kind in used[arrival].tolist())

    def _cache_label(self, text: np.ndarray, kind: int) -> None:
        """Add the label at which a kernel stopped to its table."""
        start, end = self.counts[2:4].tolist()
        count, first = len(self._kind_of_written), int(self.label_ends[len(self._kind_of_written)])
        last = first + end - start
        is_full = count == len(self.label_ends) - 1 or last > len(self.label_text)
        if start == end or end - start > _LONGEST_LABEL or is_full:
            return
        slot = tokens.label_slot(
            text, start, end, self.label_slots, self.label_ends, self.label_text
        )
        self.label_text[first:last] = text[start:end]
        self.label_ends[count + 1] = last
        self.label_slots[slot] = count
        self._kind_of_written.append(kind)
