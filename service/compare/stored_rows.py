"""Rows of a comparison in temporary files: memory stays bounded, whatever their number.

A row takes 12 bytes for each encoded feature, 24 for label, weight and time, and 8 for each column
of the peers' table and of a saved model.
"""

import mmap
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.client import BadInput
from dualstream.solvers import Batch
from dualstream.solvers.jit import Floats, Ints

_TYPES: Mapping[str, Any] = {
    "indices": np.int32,
    "values": np.float64,
    "labels": np.float64,
    "weights": np.float64,
    "table": np.float64,
    "frozen": np.float64,
}


@contextmanager
def _naming_folder() -> Iterator[None]:
    """Raise BadInput with the folder if a temporary file cannot be written."""
    try:
        yield
    except OSError as wrong:
        folder = tempfile.gettempdir()
        raise BadInput(
            f"{folder}: {wrong.strerror} (of encoded rows); set TMPDIR to a folder with more room"
        ) from None


class StoredRows:
    """Encoded rows, their labels and tables; written once, then read in order.

    Labels of classes are indices into `classes`. `features_end` is the first index that is no
    feature but an input of a history, `widths` has the columns of each table: `table`, that of the
    peers, and `frozen`, that of a saved model.
    """

    def __init__(self, dim: int, features_end: int, widths: Mapping[str, int]) -> None:
        self.dim = dim
        self.features_end = features_end
        self.widths = dict(widths)
        self.appended = 0
        """Rows so far."""
        self.classes: tuple[str, ...] = ()
        self.times: Floats = np.empty(0)
        """Of each row, ascending; empty without times."""
        self._files = {name: tempfile.TemporaryFile() for name in _TYPES}
        self._lengths: list[npt.NDArray[Any]] = []
        self._times: list[Floats] = []
        self._class_index: dict[str, int] = {}
        self._features = np.zeros(dim, np.bool_)
        self._columns: dict[str, npt.NDArray[Any]] = {}
        self._maps: list[mmap.mmap] = []
        self._starts: Ints = np.zeros(1, np.int64)
        self._order: Ints | None = None

    def append(
        self, batch: Batch, tables: Mapping[str, npt.NDArray[Any]], times: Floats | None
    ) -> None:
        """Add rows, with their part of each table and their times."""
        labels = batch.labels
        if batch.classes:
            index = [self._class_index.setdefault(c, len(self._class_index)) for c in batch.classes]
            labels = np.array(index, np.float64)[labels.astype(np.int64)]
        parts: dict[str, npt.NDArray[Any]] = {
            "indices": batch.indices,
            "values": batch.values,
            "labels": labels,
            "weights": batch.weights,
            **tables,
        }
        with _naming_folder():
            for name, array in parts.items():
                self._files[name].write(np.ascontiguousarray(array, _TYPES[name]).data)
        self._features[batch.indices] = True
        self._lengths.append(np.diff(batch.indptr))
        self.appended += len(batch)
        if times is not None:
            self._times.append(times)

    def finish(self) -> None:
        """End writing; sort by time, stably."""
        self.classes = tuple(self._class_index)
        if self._lengths:
            np.cumsum(np.concatenate(self._lengths), out=self._make_starts())
        self._lengths = []
        for name, file in self._files.items():
            with _naming_folder():
                file.flush()
            size = file.tell()
            self._columns[name] = np.empty(0, _TYPES[name])
            if size:
                # The map stays when its file is closed, which deletes the file afterwards.
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self._maps.append(mapped)
                self._columns[name] = np.frombuffer(mapped, _TYPES[name])
        self.close()
        for name, width in self.widths.items():
            self._columns[name] = self._columns[name].reshape(-1, width)
        if self._times:
            times = np.concatenate(self._times)
            self._times = []
            if np.any(np.diff(times) < 0.0):
                self._order = np.argsort(times, kind="stable")
                times = times[self._order]
            self.times = times

    def _make_starts(self) -> Ints:
        self._starts = np.zeros(sum(map(len, self._lengths)) + 1, np.int64)
        return self._starts[1:]

    def __len__(self) -> int:
        return len(self._starts) - 1

    @property
    def features(self) -> Ints:
        """Indices of the features that any row has, ascending, without inputs of a history."""
        return np.flatnonzero(self._features[: self.features_end])

    def labels(self, first: int, stop: int) -> Floats:
        """Labels of rows: -1 and 1, indices of classes, or numbers."""
        return np.array(self._columns["labels"][self._rows(first, stop)])

    def weights(self, first: int, stop: int) -> Floats:
        return np.array(self._columns["weights"][self._rows(first, stop)])

    def table(self, first: int, stop: int, name: str = "table") -> npt.NDArray[Any]:
        """(stop - first, width): a number a column, NaN for a missing one."""
        return np.array(self._columns[name][self._rows(first, stop)])

    def batch(self, first: int, stop: int) -> Batch:
        """Encoded rows with labels, for a learner."""
        rows = self._whole(first, stop) if self._order is None else self._taken(first, stop)
        if not self.classes:
            return rows
        present, firsts, ids = np.unique(rows.labels, return_index=True, return_inverse=True)
        by_row = np.argsort(firsts)  # in the order in which a request names them
        rank = np.empty(len(by_row), np.int64)
        rank[by_row] = np.arange(len(by_row))
        names = tuple(self.classes[int(present[at])] for at in by_row)
        return rows.with_labels(rank[ids], names)

    def _rows(self, first: int, stop: int) -> Any:
        return slice(first, stop) if self._order is None else self._order[first:stop]

    def _whole(self, first: int, stop: int) -> Batch:
        starts = self._starts[first : stop + 1]
        entries = slice(int(starts[0]), int(starts[-1]))
        return self._batch_of(starts - starts[0], entries, slice(first, stop))

    def _taken(self, first: int, stop: int) -> Batch:
        """Rows that lie apart in the files."""
        rows = self._rows(first, stop)
        lengths = self._starts[rows + 1] - self._starts[rows]
        starts = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=starts[1:])
        entries = np.arange(starts[-1]) + np.repeat(self._starts[rows] - starts[:-1], lengths)
        return self._batch_of(starts, entries, rows)

    def _batch_of(self, starts: Ints, entries: Any, rows: Any) -> Batch:
        columns = self._columns
        return Batch.of_checked(
            starts,
            np.array(columns["indices"][entries]),
            np.array(columns["values"][entries]),
            np.array(columns["labels"][rows]),
            np.array(columns["weights"][rows]),
            self.dim,
        )

    def release_pages(self) -> None:
        """Take what was read out of memory; it is read from the files again."""
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Close the files. Rows that are finished can still be read."""
        for file in self._files.values():
            file.close()
