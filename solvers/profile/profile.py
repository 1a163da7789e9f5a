"""ColumnProfile: what the columns of a stream hold, and how far each has moved from its past."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from sys import getsizeof
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.profile import kernels as k
from dualstream.solvers.profile.column import (
    MODERATE,
    Bin,
    Column,
    Moments,
    moments_of,
    top_of,
    value_of,
)
from dualstream.solvers.profile.named_rows import NamedRows, Pairs
from dualstream.solvers.profile.names import column_names_of
from dualstream.solvers.profile.stability_index import stability_indices
from dualstream.solvers.profile.windows import (
    MISSING,
    MISSING_OR_ZERO,
    ZERO,
    boolean_bins,
    category_bins,
    number_bins,
)
from dualstream.solvers.protocols.learner import Outcome, State
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import MAX_DIM, Batch

MAX_VALUES = 1_000
"""Values of a column from which rows without a named value are not counted as missing, once the
model has no room for names."""

_KIND_NAMES = {
    k.UNKNOWN: "unknown",
    k.NUMBER: "number",
    k.BOOLEAN: "boolean",
    k.CATEGORY: "category",
    k.TEXT: "text",
    k.TIME: "time",
}
_MIN_ROOM = 16


class ColumnProfile(NamedRows):
    """Profile of a model's columns. Part of the replicated state; constant memory for a column.

    The same rows give the same bits, independent of batch boundaries.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__()
        self._spec = spec
        self._names = column_names_of(spec)
        self._is_numbered: bool = spec["features"]["kind"] == "indexed"
        self._columns: dict[str, int] = {}
        self._kinds: list[int] = []
        self._values: list[int] = []
        """Features of each column."""
        self._table = np.zeros(1, np.int64)
        self._features = 0
        self._clock = np.array([1.0, 1.0, 0.0, 0.0])
        self._sizes = np.zeros(k.SIZES, np.int64)
        self._counts = np.zeros((0, k.COUNTS), np.int64)
        self._cells = np.zeros((0, k.CELLS))
        self._words, self._texts = np.zeros(0), np.zeros(0, np.int64)

    def _make_room(self) -> None:
        room = min(k.MAX_COLUMNS, max(_MIN_ROOM, 4 * len(self._counts)))
        counts = np.zeros((room, k.COUNTS), np.int64)
        cells = np.zeros((room, k.CELLS))
        used = int(self._sizes[k.COLUMNS])
        if used:
            counts[:used], cells[:used] = self._counts[:used], self._cells[:used]
        self._counts, self._cells = counts, cells
        self._words, self._texts = np.zeros(room), np.zeros(room, np.int64)

    # -- names -----------------------------------------------------------------------------------

    def _enter(self, pairs: Pairs) -> None:
        codes = [self._code_of(name) for _, name in pairs]
        self._enter_codes([index for index, _ in pairs], codes)

    def _enter_codes(self, indices: list[int], codes: list[int]) -> None:
        self._features += len(codes)
        if 2 * self._features >= len(self._table):
            old = self._table[self._table != 0]
            self._table = np.zeros(1 << (2 * self._features).bit_length(), np.int64)
            numbers = (old & ((1 << k.CODE_SHIFT) - 1)) - 1
            k.enter_features(self._table, numbers, old >> k.CODE_SHIFT)
        k.enter_features(self._table, np.array(indices, np.int64), np.array(codes, np.int64))

    def _code_of(self, name: str) -> int:
        """Role and column of a feature, whose column is added if it is new."""
        group = self._names.column_of(name)
        if group is None:
            return k.NO_COLUMN << k.ROLE_SHIFT
        column, kind, role = group
        number = self._columns.get(column)
        if number is None:
            number = self._add_column(column, kind)
            if number is None:
                return k.NO_COLUMN << k.ROLE_SHIFT
        known_kind = self._kinds[number]
        if known_kind == k.UNKNOWN:
            known_kind = self._kinds[number] = kind
            self._counts[number, k.KIND] = kind
        self._values[number] += 1
        if role == k.IS_CATEGORY and known_kind != k.CATEGORY:
            role = k.IS_OTHER
        elif role == k.IS_NUMBER and known_kind == k.CATEGORY:
            role = k.IS_CATEGORY
        return role << k.ROLE_SHIFT | number

    def _add_column(self, column: str, kind: int) -> int | None:
        number = len(self._kinds)
        if number >= k.MAX_COLUMNS:
            self._sizes[k.HAS_MORE] = 1
            return None
        if number >= len(self._counts):
            self._make_room()
        self._columns[column] = number
        self._kinds.append(kind)
        self._values.append(0)
        self._sizes[k.COLUMNS] = number + 1
        counts = self._counts[number]
        counts[[k.FIRST_ROW, k.LAST_ROW, k.BINNED_ROW, k.BIN]] = k.NOT_SEEN
        counts[k.KIND] = kind
        return number

    # -- rows ------------------------------------------------------------------------------------

    def _count(self, batch: Batch, outcome: Outcome) -> None:
        if self._is_numbered and not self._features:
            self._reserve_table()
        row, rows = 0, len(batch)
        while True:
            row = k.profile_rows(
                batch.indptr, batch.indices, batch.values, outcome.rejected, batch.weights, row,
                self._is_numbered, self._table, self._clock, self._sizes, self._counts,
                self._cells, self._words, self._texts,
            )  # fmt: skip
            if row == rows:
                return
            self._make_room()

    def _reserve_table(self) -> None:
        """Make the table of numbered features: every index may become a column."""
        self._features = k.MAX_COLUMNS
        self._table = np.zeros(4 * k.MAX_COLUMNS, np.int64)

    def forget_rows(self) -> None:
        """Begin again, with no value of an earlier row; names of features stay."""
        self._clock[:] = (1.0, 1.0, 0.0, 0.0)
        self._sizes[[k.ROWS, k.LEARNED]] = 0
        self._cells[:] = 0.0
        self._counts[:] = 0
        if self._is_numbered:
            self._sizes[:] = 0
            self._features, self._table = 0, np.zeros(1, np.int64)
            return
        used = len(self._kinds)
        self._counts[:used, [k.FIRST_ROW, k.LAST_ROW, k.BINNED_ROW, k.BIN]] = k.NOT_SEEN
        self._counts[:used, k.KIND] = self._kinds

    # -- reading ---------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Profiled rows."""
        return int(self._sizes[k.ROWS])

    @property
    def has_more(self) -> bool:
        """Whether the stream has more columns than the 256 that are kept."""
        return bool(self._sizes[k.HAS_MORE])

    @property
    def bytes_held(self) -> int:
        """Memory in bytes."""
        arrays = (self._table, self._counts, self._cells, self._words, self._texts, self._clock)
        named = sum(map(getsizeof, self._columns)) + getsizeof(self._columns)
        return sum(map(getsizeof, arrays)) + named + 16 * len(self._kinds)

    def indices(self) -> Floats:
        """Population stability index (columns,) of each column; NaN without one."""
        used = int(self._sizes[k.COLUMNS])
        out = np.empty(used)
        stability_indices(self._clock, self._sizes, self._counts, self._cells, out)
        return out

    def column_names(self) -> list[str]:
        """Names of the columns, in order of arrival; numbered features count from 1."""
        if self._is_numbered:
            used = int(self._sizes[k.COLUMNS])
            return [str(index + 1) for index in self._counts[:used, k.FEATURE].tolist()]
        return list(self._columns)

    def drifts(self, names_are_full: bool) -> list[tuple[str, float]]:
        """Names and stability indices of the columns that have one, largest first."""
        drifts = [
            (-index, number, name)
            for number, (name, index) in enumerate(
                zip(self.column_names(), self.indices().tolist(), strict=True)
            )
            if not (math.isnan(index) or (names_are_full and self._is_open(number)))
        ]
        return [(name, -index) for index, _, name in sorted(drifts)]

    def _is_open(self, number: int) -> bool:
        return not self._is_numbered and self._values[number] > MAX_VALUES

    def columns(
        self, name_of: Callable[[int], str | None], names_are_full: bool = False
    ) -> list[Column]:
        """The columns that learned rows had, in order of arrival.

        name_of         name of the feature at an index
        names_are_full  whether further features get no name: of columns with many values it is then
                        unknown which rows lack them
        """
        columns = []
        for number, (name, psi) in enumerate(
            zip(self.column_names(), self.indices().tolist(), strict=True)
        ):
            if self._counts[number, k.FIRST_ROW] == k.NOT_SEEN:
                continue
            is_open = names_are_full and self._is_open(number)
            psi = None if math.isnan(psi) or is_open else psi
            columns.append(self._column(number, name, psi, is_open, name_of))
        return columns

    def _column(
        self,
        number: int,
        name: str,
        psi: float | None,
        is_open: bool,
        name_of: Callable[[int], str | None],
    ) -> Column:
        counts, cells = self._counts[number].tolist(), self._cells[number].tolist()
        kind, count, others = counts[k.KIND], counts[k.COUNT], counts[k.OTHERS]
        rows = self.rows - counts[k.FIRST_ROW]
        absent = rows - count - counts[k.MISSING]
        is_numeric = kind in (k.NUMBER, k.BOOLEAN)
        stores_zeros = self._is_numbered or self._names.stores_zeros(name)
        zeros = absent if is_numeric and stores_zeros else 0
        top: list[tuple[str, int]] = []
        last: float | str | None = None
        moments: Moments = (None, None, None, None)
        if kind == k.CATEGORY:
            top = top_of(cells, name, name_of)
            last = value_of(int(cells[k.LAST]), name, name_of) if count else None
        elif kind in (k.NUMBER, k.TEXT, k.BOOLEAN) and count - others + zeros:
            moments = moments_of(cells, count - others, zeros)
            if is_numeric and counts[k.LAST_ROW] >= 0:
                last = cells[k.LAST]
                if zeros and counts[k.LAST_ROW] != self.rows - 1:
                    last = 0.0
        if kind == k.BOOLEAN:
            top = [(one, n) for one, n in (("true", count), ("false", zeros)) if n]
            last = None if last is None else "true" if last else "false"
            moments = (None, None, None, None)
        return Column(
            name,
            _KIND_NAMES[kind],
            count + zeros,
            None if is_open else rows - count - zeros,
            is_numeric and not stores_zeros,
            others,
            *moments,
            sorted(top, key=lambda one: (-one[1], one[0])),
            last,
            psi,
            [] if psi is None or psi < MODERATE else self._bins(number, name, name_of),
        )

    def _bins(self, number: int, name: str, name_of: Callable[[int], str | None]) -> list[Bin]:
        kind, cells = self._counts[number, k.KIND], self._cells[number]
        if kind == k.CATEGORY:
            named = partial(value_of, column=name, name_of=name_of)
            return category_bins(self._clock, cells, named)
        if kind == k.TEXT:
            return number_bins(self._clock, cells, MISSING)
        stores_zeros = self._is_numbered or self._names.stores_zeros(name)
        if kind == k.BOOLEAN:
            absent = "false" if stores_zeros else "(missing or false)"
            return boolean_bins(self._clock, cells, absent)
        return number_bins(self._clock, cells, ZERO if stores_zeros else MISSING_OR_ZERO)

    # -- state -----------------------------------------------------------------------------------

    def state(self) -> State:
        """The state, as copies. Names of features are not in it: see `restore`."""
        used = int(self._sizes[k.COLUMNS])
        return {
            "clock": self._clock.copy(),
            "sizes": self._sizes.copy(),
            "counts": self._counts[:used].copy(),
            "cells": self._cells[:used].copy(),
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]], names: Pairs) -> None:
        """Restore this state, to the bit, of a model with these names of features, in their order.

        Raises CorruptState; the object is unusable then.
        """
        self.__init__(self._spec)  # type: ignore[misc]
        if not state:
            raise CorruptState("the state has no column profile")
        if not self._is_numbered:
            self._enter(names)
        used = np.shape(state.get("counts", ()))[:1]
        shapes = {"counts": (*used, k.COUNTS), "cells": (*used, k.CELLS)}
        check_arrays(state, {"clock": (k.CLOCK,), "sizes": (k.SIZES,), **shapes})
        columns = int(state["sizes"][k.COLUMNS])
        if used != (columns,) or not 0 <= columns <= k.MAX_COLUMNS:
            raise CorruptState(f"a profile of {columns} columns has counts of {used}")
        while columns > len(self._counts):
            self._make_room()
        self._clock[:] = state["clock"]
        kept = [k.ROWS, k.LEARNED, k.HAS_MORE]
        self._sizes[kept] = state["sizes"][kept]
        self._counts[:columns], self._cells[:columns] = state["counts"], state["cells"]
        if self._is_numbered:
            self._sizes[k.COLUMNS] = columns
            if columns:
                self._reserve_table()
                numbers = np.arange(columns) | (k.IS_NUMBER << k.ROLE_SHIFT)
                k.enter_features(self._table, self._counts[:columns, k.FEATURE].copy(), numbers)
        elif columns > len(self._kinds):
            raise CorruptState(f"a profile of {columns} columns has names of {len(self._kinds)}")
        kinds = [k.NUMBER] * columns if self._is_numbered else self._kinds[:columns]
        if not _is_sound(self._counts[:columns], np.array(kinds, np.int64), self.rows):
            raise CorruptState("the column profile has a number out of range")


def _is_sound(counts: Ints, kinds: Ints, rows: int) -> bool:
    """Whether kernels can continue from these columns: what they use as an index is in range."""
    seen = counts[:, k.COUNT] - counts[:, k.OTHERS]
    is_sampling = counts[:, k.BINNED_ROW] == k.NOT_SEEN
    in_order = (0 <= seen) & (seen <= counts[:, k.COUNT]) & (counts[:, k.COUNT] <= rows)
    has_room = ~is_sampling | (seen < k.SAMPLED) | (counts[:, k.KIND] == k.TIME)
    is_index = (0 <= counts[:, k.FEATURE]) & (counts[:, k.FEATURE] <= MAX_DIM)
    has_bin = (k.NOT_SEEN <= counts[:, k.BIN]) & (counts[:, k.BIN] < k.NUMBER_BINS)
    return bool(np.all(in_order & has_room & is_index & has_bin & (counts[:, k.KIND] == kinds)))
