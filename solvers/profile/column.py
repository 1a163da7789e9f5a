"""Column: the profile of one column, as answers show it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dualstream.solvers.profile import kernels as k

MODERATE, LARGE = 0.1, 0.25
"""Usual limits of the population stability index."""
Bin = tuple[str | None, float | None, float | None, float, float]
"""A value or None, numbers from and up to, share of the rows before, and of the recent ones."""
Moments = tuple[float | None, float | None, float | None, float | None]


@dataclass(frozen=True, slots=True)
class Column:
    """Profile of one column. Profiled rows count from the first one that had it."""

    name: str
    kind: str
    """number, boolean, category, text, time, or unknown (only missing values so far)."""
    count: int
    """Rows with a value."""
    missing: int | None
    """Rows without a value; None if it is not known."""
    missing_includes_zero: bool
    """Whether 0 and false count as missing: rows do not store them."""
    others: int
    """Rows whose value is a text, in a column of numbers."""
    mean: float | None
    """Of numbers, and of the words of a text."""
    sd: float | None
    """Standard deviation, with the divisor n."""
    minimum: float | None
    maximum: float | None
    top: list[tuple[str, int]]
    """The most frequent values, and how often they came at least."""
    last: float | str | None
    """The last value that was not missing; None of texts and times."""
    psi: float | None
    """Population stability index: the last 1,000 rows or so against the 10,000 before them, less
    its mean by chance. None before 2,000 rows, and of times."""
    bins: list[Bin]
    """Of columns that moved: both windows of the index."""

    @classmethod
    def without_rows(cls, name: str) -> "Column":
        """A column of which no row was learned."""
        nothing = (None, None, None, None)
        return cls(name, "unknown", 0, 0, False, 0, *nothing, top=[], last=None, psi=None, bins=[])

    @property
    def drift(self) -> str | None:
        """none, moderate or large; None without an index."""
        if self.psi is None:
            return None
        return "large" if self.psi >= LARGE else "moderate" if self.psi >= MODERATE else "none"


def value_of(index: int, column: str, name_of: Callable[[int], str | None]) -> str:
    """The value that a feature of a category stands for."""
    name = name_of(index)
    if name is None or name == column:
        return "(a number)"
    return name[len(column) + 1 :]


def top_of(
    cells: Sequence[float], column: str, name_of: Callable[[int], str | None]
) -> list[tuple[str, int]]:
    """The most frequent values, and how often they came at least."""
    slots = (cells[at : at + 3] for at in range(k.TOP_FROM, k.TOP_FROM + 3 * k.TOP, 3))
    return [
        (value_of(int(key) - 1, column, name_of), int(count - error))
        for key, count, error in slots
        if key
    ]


def moments_of(cells: Sequence[float], count: int, zeros: int) -> Moments:
    """Mean, standard deviation, minimum and maximum of `count` numbers and these zeros."""
    mean, squares = cells[k.MEAN], cells[k.SQUARES]
    lowest, highest = cells[k.LOWEST], cells[k.HIGHEST]
    if zeros:
        lowest, highest = (min(lowest, 0.0), max(highest, 0.0)) if count else (0.0, 0.0)
        share = count / (count + zeros)
        squares += mean * mean * share * zeros
        mean *= share
    return mean, math.sqrt(squares / (count + zeros)), lowest, highest
