"""What a request's body holds: the good rows, and the bad ones with their reasons."""

from collections.abc import Sequence
from itertools import accumulate, chain

import msgspec
import numpy as np

from dualstream.service.codecs.row_schema import (
    BadRow,
    Features,
    Label,
    RowSchema,
    too_many_nonzeros,
)
from dualstream.solvers import Batch, class_places
from dualstream.wire.problems import RowError


class ListedRows(msgspec.Struct):
    """A few rows as Python lists: a group of requests becomes arrays once, not one by one.

    Laid out as a Batch: indptr from 0, indices from 0 and sorted within a row, no zeros. The
    door has checked each row, and nothing is looked at again.
    """

    indptr: list[int]
    indices: list[int]
    values: list[float]
    labels: list[float] | list[str]
    """Class texts where the task is multiclass."""
    weights: list[float]
    dim: int
    names: list[tuple[int, str]] = []
    """Places and names of features that the journal may not know yet."""
    name_ends: list[int] = []
    """Where the names of each row end; without names it is empty."""
    ids: dict[int, str] = {}
    """The ids of those rows that have one."""
    served_scores: list[float] = []
    """Where the labels came late: what the rows were served with; else it is empty."""

    def __len__(self) -> int:
        return len(self.labels)

    def names_of(self, first: int, stop: int) -> list[tuple[int, str]]:
        """The names that came with the rows from `first` to before `stop`."""
        if not self.names:
            return []
        return self.names[self.name_ends[first - 1] if first else 0 : self.name_ends[stop - 1]]


Rows = ListedRows | Batch


def as_batch(pieces: Sequence[Rows]) -> Batch:
    """All rows of some pieces of one width, in order."""
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
            served_scores=list(flat(_served(piece) for piece in listed))
            if any(piece.served_scores for piece in listed)
            else [],
        )
    )


def _served(rows: ListedRows) -> list[float]:
    return rows.served_scores or [Batch.UNLABELLED] * len(rows)


def _as_arrays(rows: Rows) -> Batch:
    if isinstance(rows, Batch):
        return rows
    labels, classes = labels_and_classes(rows.labels)
    columns = (
        np.array(rows.indptr, np.int64),
        np.array(rows.indices, np.int32),
        np.array(rows.values, np.float64),
        labels,
        np.array(rows.weights, np.float64),
    )
    if rows.served_scores:  # they have waited in the store, which may be damaged
        return Batch(*columns, rows.dim, classes, np.array(rows.served_scores, np.float64))
    return Batch.of_checked(*columns, rows.dim, classes)


def labels_and_classes(
    labels: Sequence[float | str] | np.ndarray,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The labels of a Batch and its classes, from numbers or from class texts."""
    if len(labels) and isinstance(labels[0], str):
        return class_places([str(text) for text in labels])
    return np.asarray(labels, np.float64), ()


def class_texts(rows: Rows) -> list[float] | list[str] | np.ndarray:
    """The labels as the journal holds them: numbers, or class texts."""
    if isinstance(rows, Batch) and rows.classes:
        return [rows.classes[int(place)] for place in rows.labels.tolist()]
    return rows.labels


class ParsedRows(msgspec.Struct):
    """What a request's body holds: the good rows, their places in it, and the bad ones."""

    rows: Rows
    places: Sequence[int]
    errors: list[RowError] = []
    single: bool = False
    id_pointer: str = "/id"
    """Where the id of a row stands in the body, with {} for the row's place."""
    names_beside: Sequence[tuple[int, str]] = ()
    """Names that come with rows that are a Batch, which holds none."""

    @property
    def count(self) -> int:
        """Rows in the body, good and bad together."""
        return len(self.places) + len(self.errors)

    @property
    def labels(self) -> list[float] | list[str]:
        """Of the good rows, as the learner sees them: numbers, or class texts."""
        labels = class_texts(self.rows)
        return list(labels.tolist()) if isinstance(labels, np.ndarray) else labels

    @property
    def names(self) -> Sequence[tuple[int, str]]:
        """Places and names of features that the journal may not know yet."""
        return self.rows.names if isinstance(self.rows, ListedRows) else self.names_beside


class IntakeBuilder:
    """Collects a request's rows, good and bad, in their order."""

    def __init__(self, door: RowSchema, labelled: bool, waiting: bool = False) -> None:
        self._door = door
        self._labelled = labelled
        self._most_nonzeros = door.limits.nonzeros
        # Rows that wait for their labels need ids, by which these find them.
        self._waiting = waiting
        self._ids: set[str] = set()
        self._rows = ListedRows([0], [], [], [], [], door.dim)
        self._places: list[int] = []
        self._errors: list[RowError] = []

    def refuse(self, place: int, pointer: str, reason: str, line: int | None = None) -> None:
        self._errors.append(RowError(place, pointer, reason, line))

    def take(
        self,
        place: int,
        x: Features,
        y: Label | None,
        weight: float,
        id_: str | int | None = None,
    ) -> None:
        """Add the row at `place` of the request; raises BadRow and adds nothing."""
        door, rows = self._door, self._rows
        indices, values, names = door.features(x)
        if len(indices) > self._most_nonzeros:
            raise BadRow("/x", too_many_nonzeros(len(indices), self._most_nonzeros))
        label = door.label(y) if self._labelled else 0.0
        if weight != 1.0:
            door.check_weight(weight)
        if self._waiting:
            rows.ids[len(rows)] = self._new_id(id_)
        elif id_ is not None and self._labelled:
            rows.ids[len(rows)] = door.id(id_)
        if (self._labelled or self._waiting) and door.is_hashed:
            rows.names += names
            rows.name_ends.append(len(rows.names))
        rows.weights.append(weight)
        rows.labels.append(label)  # type: ignore[arg-type]
        rows.indices += indices
        rows.values += values
        rows.indptr.append(len(rows.indices))
        self._places.append(place)

    def _new_id(self, given: str | int | None) -> str:
        if given is None:
            raise BadRow("/id", "the id is missing, by which its label is to find the row")
        id_ = self._door.id(given)
        if id_ in self._ids:
            raise BadRow("/id", f"the id {id_!r} stands in the request twice")
        self._ids.add(id_)
        return id_

    @property
    def listed(self) -> ListedRows:
        """The good rows so far."""
        return self._rows

    def intake(self, single: bool = False, id_pointer: str = "/id") -> ParsedRows:
        return ParsedRows(self._rows, self._places, self._errors, single, id_pointer)
