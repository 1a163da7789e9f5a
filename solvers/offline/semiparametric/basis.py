"""Basis functions psi_j of semiparametric regression, and their independence on a window."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dualstream.solvers.errors import InvalidSpec
from dualstream.solvers.jit import Floats
from dualstream.solvers.offline.dense_algebra import dot
from dualstream.solvers.rows.batch import Batch

INDEPENDENT = 1e-9
"""A column is independent if its residual against all earlier ones has at least this relative
length."""


class Term(Protocol):
    """One function of a row."""

    @property
    def name(self) -> str:
        """Name of its coefficient."""

    def column(self, rows: Batch) -> Floats:
        """Its value at each row, (n,)."""


@dataclass(frozen=True, slots=True)
class Constant:
    """1: its coefficient is the intercept."""

    name: str = "constant"

    def column(self, rows: Batch) -> Floats:
        return np.ones(len(rows))


@dataclass(frozen=True, slots=True)
class Power:
    """x_j to a power: 1 is linear, 2 quadratic. `feature` counts from 0."""

    feature: int
    power: int
    name: str

    def column(self, rows: Batch) -> Floats:
        return feature_column(rows, self.feature) ** self.power


@dataclass(frozen=True, slots=True)
class Wave:
    """sin or cos of 2 pi x_j / period. `feature` counts from 0."""

    feature: int
    period: float
    shift: float
    name: str

    def column(self, rows: Batch) -> Floats:
        # Remove whole periods first: the sine of a large number loses its digits.
        turns = np.fmod(feature_column(rows, self.feature), self.period) / self.period
        return np.sin(2.0 * math.pi * (turns + self.shift))


@dataclass(frozen=True, slots=True)
class Sinc:
    """sin(t) / t with t = 2 pi (x_j - centre) / period, 1 at the centre; section 4.5.1 of the
    thesis has period 1. `feature` counts from 0."""

    feature: int
    period: float
    centre: float
    name: str

    def column(self, rows: Batch) -> Floats:
        x = feature_column(rows, self.feature) - self.centre
        angle = 2.0 * math.pi * (x / self.period)
        sine = np.sin(2.0 * math.pi * (np.fmod(x, self.period) / self.period))
        return np.divide(sine, angle, out=np.ones(len(x)), where=angle != 0.0)


@dataclass(frozen=True, slots=True)
class Function:
    """Any function of dense rows (n, dim), giving (n,)."""

    name: str
    function: Callable[[Floats], Floats]

    def column(self, rows: Batch) -> Floats:
        dense = np.zeros((len(rows), rows.dim))
        dense[np.repeat(np.arange(len(rows)), np.diff(rows.indptr)), rows.indices] = rows.values
        return np.array(self.function(dense), np.float64).reshape(len(rows))


@dataclass(frozen=True, slots=True)
class Given:
    """A column of values that come with the rows: `column` counts from 0."""

    place: int
    name: str

    def column(self, rows: Batch) -> Floats:
        raise InvalidSpec("/basis", self.name, "given for these rows too: predict(x, columns)")


Basis = Sequence["Term | Callable[[Floats], Floats]"] | Floats


def terms_of(basis: Basis) -> tuple[Term, ...]:
    """The terms of a basis of terms, of functions of dense rows, or of columns (n, K).

    Functions are named `psi 1`, `psi 2`, ..., and columns `column 1`, ...
    """
    if isinstance(basis, np.ndarray):
        if basis.ndim != 2:
            raise InvalidSpec("/basis", f"an array of shape {basis.shape}", "columns (n, K)")
        return tuple(Given(j, f"column {j + 1}") for j in range(basis.shape[1]))
    return tuple(
        Function(f"psi {at}", term) if callable(term) else term for at, term in enumerate(basis, 1)
    )


def constant() -> Term:
    return Constant()


def linear(feature: int, name: str | None = None) -> Term:
    return Power(feature, 1, name or f"linear({feature})")


def quadratic(feature: int, name: str | None = None) -> Term:
    return Power(feature, 2, name or f"quadratic({feature})")


def sine(feature: int, period: float, name: str | None = None) -> Term:
    return Wave(feature, period, 0.0, name or f"sine({feature}, {period:g})")


def cosine(feature: int, period: float, name: str | None = None) -> Term:
    return Wave(feature, period, 0.25, name or f"cosine({feature}, {period:g})")


def sinc(feature: int, period: float, centre: float = 0.0, name: str | None = None) -> Term:
    return Sinc(feature, period, centre, name or f"sinc({feature}, {period:g}, {centre:g})")


def feature_column(rows: Batch, feature: int) -> Floats:
    """(n,): the values of one feature, counted from 0."""
    if not 0 <= feature < rows.dim:
        raise InvalidSpec("/basis", feature, f"a feature below {rows.dim}")
    column = np.zeros(len(rows))
    here = np.flatnonzero(rows.indices == feature)
    column[np.searchsorted(rows.indptr, here, side="right") - 1] = rows.values[here]
    return column


def check_names(basis: Sequence[Term]) -> None:
    """Raise InvalidSpec for duplicate names."""
    names = [term.name for term in basis]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise InvalidSpec("/basis", name, "a name that no other term has")


def evaluate(basis: Sequence[Term], rows: Batch, columns: Floats | None = None) -> Floats:
    """(K, n): each term at each row. Raises InvalidSpec for a value that is not finite.

    columns (n, K'), of which `Given` terms take theirs
    """
    psi = np.empty((len(basis), len(rows)))
    for term, out in zip(basis, psi, strict=True):
        if isinstance(term, Given) and columns is not None:
            out[:] = columns[:, term.place]
        else:
            out[:] = term.column(rows)
        if not np.isfinite(out).all():
            raise InvalidSpec("/basis", term.name, "finite at every row")
    return psi


def independent(psi: Floats) -> list[int]:
    """Which rows of psi (K, n) are independent; of dependent rows the earlier ones are kept.

    Gram-Schmidt, twice, in order, on rows of unit length.
    """
    kept: list[int] = []
    directions: list[Floats] = []
    for at, column in enumerate(psi):
        largest = float(np.abs(column).max(initial=0.0))
        if largest == 0.0:
            continue
        rest = column / largest
        rest /= math.sqrt(dot(rest, rest))
        for _ in range(2):
            for direction in directions:
                rest = rest - dot(rest, direction) * direction
        length = math.sqrt(dot(rest, rest))
        if length > INDEPENDENT:
            kept.append(at)
            directions.append(rest / length)
    return kept
