"""The dual problem of a window of rows, and the bounds of a point.

    min over w, beta of  |w|^2 / 2 + sum_i c_i max(0, |y_i - h(x_i)| - epsilon),
    h(x) = <w, phi(x)> + beta . psi(x),   beta not penalised                            (4.3)

With z = [alpha; alpha*] and delta = alpha - alpha*, the dual is (4.2):

    min  delta'K delta / 2 - y.delta + epsilon sum(z),   0 <= z <= [c; c],  psi delta = 0

Lee, "Optimization methods for regularized convex formulations in machine learning" (thesis),
chapter 4; Q has the blocks K and -K without y_i y_j, see docs/internals/misprints.md. The
multipliers of psi delta = 0 are beta. alpha_i and alpha*_i share a row of K.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.offline.dense_algebra import dot
from dualstream.solvers.offline.interior_point import combined, products
from dualstream.solvers.offline.semiparametric.gaussian_kernels import (
    expand,
    fill_rows,
    fill_square,
)
from dualstream.solvers.rows.batch import Batch

_PORTION = 256
"""Kernel rows computed between two checks for cancellation."""


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """m rows, scaled to numbers of the order of 1."""

    rows: Batch
    y: Floats
    """(m,)"""
    psi: Floats
    """(K, m), independent rows of unit mean square."""
    gamma: float
    epsilon: float
    c: Floats
    """(m,), > 0: the largest |delta_i|."""

    def __len__(self) -> int:
        return len(self.y)

    def square(self, coordinates: Ints, check: Callable[[], None]) -> Floats:
        """K between these rows, (k, k)."""
        rows, k = self.rows, len(coordinates)
        if k <= 4 * _PORTION:
            out = np.empty((k, k))
            fill_square(rows.indptr, rows.indices, rows.values, coordinates, self.gamma, out)
            return out
        chosen = rows if k == len(self) else rows.take(coordinates)
        out = np.empty((k, k))
        for start in range(0, k, _PORTION):
            check()
            part = np.arange(start, min(start + _PORTION, k))
            fill_rows(
                chosen.indptr, chosen.indices, chosen.values, part, self.gamma,
                out[start : start + len(part)],
            )  # fmt: skip
        return out

    def rows_of_kernel(self, coordinates: Ints) -> Floats:
        """K between these rows and all, (k, m)."""
        out = np.empty((len(coordinates), len(self)))
        rows = self.rows
        fill_rows(rows.indptr, rows.indices, rows.values, coordinates, self.gamma, out)
        return out

    def k_delta(self, delta: Floats, check: Callable[[], None]) -> Floats:
        """K delta, (m,), recomputed from the rows with delta != 0."""
        support = np.flatnonzero(delta)
        out = np.zeros(len(self))
        if len(support):
            chosen = self.rows.take(support)
            for start in range(0, len(self), _PORTION):
                check()
                expansion(
                    self.rows[start : start + _PORTION], chosen, delta[support], self.gamma,
                    out[start : start + _PORTION],
                )  # fmt: skip
        return out

    def violations(self, z: Floats, k_delta: Floats, eta: Floats) -> Floats:
        """(2 m,): |z - clip(z - v, 0, c)| with v the gradient of the Lagrangian, 0 if (4.4) is
        satisfied."""
        off = k_delta + combined(eta, self.psi) - self.y
        slope = np.concatenate([off + self.epsilon, self.epsilon - off])
        off_bounds: Floats = np.abs(z - np.clip(z - slope, 0.0, np.concatenate([self.c, self.c])))
        return off_bounds

    def primal(self, delta: Floats, k_delta: Floats, eta: Floats) -> float:
        """The value of (4.3) at w = sum_i delta_i phi(x_i), beta = eta."""
        off = np.abs(self.y - k_delta - combined(eta, self.psi)) - self.epsilon
        return 0.5 * dot(delta, k_delta) + dot(self.c, np.maximum(off, 0.0))

    def dual(self, delta: Floats, k_delta: Floats) -> float:
        """A lower bound of (4.3), if psi delta = 0 and |delta| <= c."""
        linear = dot(self.y, delta) - self.epsilon * float(np.abs(delta).sum())
        return linear - 0.5 * dot(delta, k_delta)


def expansion(rows: Batch, support: Batch, delta: Floats, gamma: float, out: Floats) -> None:
    """out[i] = sum_j delta_j k(x_i, s_j)."""
    expand(
        rows.indptr, rows.indices, rows.values,
        support.indptr, support.indices, support.values, delta, gamma, out,
    )  # fmt: skip


def feasible(delta: Floats, psi: Floats, c: Floats) -> Floats | None:
    """The nearest delta with psi delta = 0 and |delta| <= c, which gives a bound.

    Each coordinate may move by its distance from 0 and from its bounds, and moves in proportion to
    the square of that. None if that does not suffice.
    """
    delta = np.clip(delta, -c, c)
    if not len(psi):
        return delta
    room = np.minimum(np.abs(delta), c - np.abs(delta))
    freedom = room * room / c
    through = psi * freedom
    schur = np.einsum("in,jn->ij", through, psi)
    for _ in range(4):
        share = np.linalg.lstsq(schur, products(psi, delta), rcond=1e-13)[0]
        delta = np.clip(delta - combined(share, through), -c, c)
    left = np.abs(products(psi, delta))
    return delta if bool(np.all(left <= 1e-12 * (products(np.abs(psi), np.abs(delta))))) else None
