"""Rows on their way from text to a Batch: arrays that kernels fill, and slow readers add to."""

from collections.abc import Sequence

import numpy as np

from dualstream.service.codecs.parsed_rows import ListedRows, ParsedRows
from dualstream.service.codecs.row_schema import MAX_NAMES, RowSchema
from dualstream.solvers import Batch
from dualstream.solvers.text import (
    LABELS,
    LONGEST_NAME,
    MEMO_NUMBERS,
    NO_LABELS,
    NUMBERS,
    PLACES,
    label_slot,
    slot_of,
)
from dualstream.wire.problems import RowError

# Longer labels are read again each time.
_LONGEST_LABEL = 256


class RowArrays:
    """Up to so many rows of so many entries for the model behind `door`.

    The attributes are the arguments of the kernels in solvers/text/, which say what they hold.
    """

    def __init__(self, door: RowSchema, labelled: bool, rows: int, entries: int, text: int) -> None:
        self._door = door
        self.labelled = labelled
        self.dim = -door.dim if door.is_hashed else door.dim
        self.label_kind = NO_LABELS
        if labelled:
            self.label_kind = NUMBERS if door.task == "regression" else PLACES
        self.indptr = np.zeros(rows + 1, np.int64)
        self.indices, self.values = np.empty(entries, np.int32), np.empty(entries)
        self.labels, self.weights = np.empty(rows), np.empty(rows)
        self.places = np.empty(rows, np.int64)
        self.spare, self.held = np.empty(entries, np.int32), np.empty(entries)
        self.buffer = np.empty(3 * LONGEST_NAME + 2, np.uint8)
        self.counts = np.zeros(4, np.int64)
        self.at = np.zeros(4, np.int64)
        self.memo = np.zeros(MEMO_NUMBERS, np.int64)
        self._ready_names(min(entries, MAX_NAMES), text)
        self._ready_labels(min(rows, LABELS))

    def _ready_names(self, most: int, text: int) -> None:
        self.told = self._door.told_places
        self.is_telling = self.labelled and self._door.is_hashed and self._door.tells_names
        if not self.is_telling:
            most = text = 0
        slots = 1 << max(1, (2 * most).bit_length())
        self.seen = np.zeros(slots, np.int32)
        self.name_places, self.name_ends = np.empty(most, np.int32), np.zeros(most + 1, np.int64)
        self.names = np.empty(text, np.uint8)
        self._told: list[tuple[int, str]] = []
        self._drained = 0

    def _ready_labels(self, most: int) -> None:
        # What labels mean: kinds in their order of arrival, and the kind of each label as written.
        self._kinds: dict[float | str, int] = {}
        self._kind_of_written: list[int] = []
        if self.label_kind != PLACES:
            most = 0
        self.label_slots = np.full(1 << max(1, (2 * most).bit_length()), -1, np.int32)
        self.label_ends = np.zeros(most + 1, np.int64)
        self.label_text = np.empty(most * 16 + _LONGEST_LABEL, np.uint8)

    @property
    def count(self) -> int:
        """Rows that are there."""
        return int(self.at[3])

    def take(self, text: np.ndarray, one: ListedRows, place: int) -> None:
        """Add the one row that a slow reader made of what stands at `place` of the body.

        Its label is known from here on, where the kernel said where it stands in `text`.
        """
        row = self.count
        self.weights[row], self.places[row] = one.weights[0], place
        label = one.labels[0]
        if self.label_kind == PLACES:
            self.labels[row] = self.kind_of(label)
            self._know_label(text, self._kinds[label])
        else:
            self.labels[row] = label
        self.take_x(one.indices, one.values, one.names)

    def take_x(self, indices: list[int], values: list[float], names: list[tuple[int, str]]) -> None:
        """Add a row of these features, of which a slow reader says that they are new names."""
        row = self.count
        start = int(self.indptr[row])
        end = start + len(indices)
        self.indices[start:end], self.values[start:end] = indices, values
        self.indptr[row + 1] = end
        self.drain_names()
        self._tell(names)
        self.at[3] = row + 1

    def learn_label(self, text: np.ndarray, label: float | str) -> bool:
        """Know what the label means at which a kernel stopped; False where there is no room."""
        known = len(self._kind_of_written)
        self.kind_of(label)
        self._know_label(text, self._kinds[label])
        return len(self._kind_of_written) > known

    def kind_of(self, label: float | str) -> float:
        """How this label of the learner stands in `labels`, where labels are places."""
        return -1.0 - self._kinds.setdefault(label, len(self._kinds))

    def _tell(self, names: list[tuple[int, str]]) -> None:
        for place, name in names:
            slot = slot_of(self.seen, place)
            if not self.seen[slot] and len(self._told) < len(self.name_places):
                self.seen[slot] = ~place
                self._told.append((place, name))

    def drain_names(self) -> None:
        """Take over the names that a kernel met."""
        first, last = self._drained, int(self.counts[0])
        if first == last:
            return
        ends = self.name_ends[first : last + 1].tolist()
        text = self.names[ends[0] : ends[-1]].tobytes()
        offset = ends[0]
        for k, place in enumerate(self.name_places[first:last].tolist()):
            name = text[ends[k] - offset : ends[k + 1] - offset].decode()
            self._told.append((place, name))
        self._drained = last
        if last >= MAX_NAMES:  # no replica keeps more
            self.is_telling = False

    def intake(
        self, errors: list[RowError], names: Sequence[tuple[int, str]] | None = None
    ) -> ParsedRows:
        """All rows, beside the bad ones; with those names, or those that were met."""
        self.drain_names()
        n = self.count
        nnz = int(self.indptr[n])
        labels: np.ndarray = self.labels[:n]
        classes: tuple[str, ...] = ()
        if self.label_kind == PLACES and n:
            labels, classes = self._resolved(labels.astype(np.int64))
        batch = Batch(
            self.indptr[: n + 1],
            self.indices[:nnz],
            self.values[:nnz],
            labels,
            self.weights[:n],
            self._door.dim,
            classes,
        )
        return ParsedRows(
            batch,
            self.places[:n].tolist() if errors else range(n),
            errors,
            names_beside=self._told if names is None else names,
        )

    def _resolved(self, places: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
        """The labels of a Batch, and its classes, of what kernels and `take` left."""
        written = np.array([*self._kind_of_written, 0])
        kinds = np.where(places >= 0, written[np.maximum(places, -1)], -1 - places)
        if self._door.task != "multiclass":
            return np.array(list(self._kinds), np.float64)[kinds], ()
        # The classes of these rows, in their order of arrival.
        used, first, of_used = np.unique(kinds, return_index=True, return_inverse=True)
        arrival = np.argsort(first)
        rank = np.empty(len(used))
        rank[arrival] = np.arange(len(used))
        names = list(map(str, self._kinds))
        return rank[of_used], tuple(names[kind] for kind in used[arrival].tolist())

    def _know_label(self, text: np.ndarray, kind: int) -> None:
        """Put the label that a kernel did not know into its table."""
        start, end = self.counts[2:4].tolist()
        known, first = len(self._kind_of_written), int(self.label_ends[len(self._kind_of_written)])
        last = first + end - start
        is_full = known == len(self.label_ends) - 1 or last > len(self.label_text)
        if start == end or end - start > _LONGEST_LABEL or is_full:
            return
        slot = label_slot(text, start, end, self.label_slots, self.label_ends, self.label_text)
        self.label_text[first:last] = text[start:end]
        self.label_ends[known + 1] = last
        self.label_slots[slot] = known
        self._kind_of_written.append(kind)
