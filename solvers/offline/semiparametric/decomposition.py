"""Decomposition: solves the window at once, or one working set of coordinates after the other.

Lee (thesis), Algorithm 4. A point is accepted by the natural residual of (4.4): the printed test
with z_i exactly 0 or c never ends. Once the residual is small, the point's own bound decides, and
the required residual shrinks until the gap meets the tolerance.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.offline.dense_algebra import solve_factored
from dualstream.solvers.offline.interior_point import (
    Quadratic,
    Solve,
    cholesky,
    minimise,
    product,
    products,
)
from dualstream.solvers.offline.semiparametric import subproblem
from dualstream.solvers.offline.semiparametric.window import Window, feasible

_RECOMPUTE_EVERY = 50
"""Outer steps after which K delta is recomputed."""
_MIN_FRESH = 10
_MAX_OUTER = 2000
_MAX_FAILURES = 3
"""Consecutive working sets that the method failed to solve, after which the run has stalled."""
_MANAGEABLE = 1e6
"""Beyond this, c exceeds the range of float64 for labels of the order of 1."""
_SINGLE = 1e-4
"""From this tolerance on, rows of the kernel are stored as float32."""


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """A point of the dual problem with its bounds; all in the window's own scale."""

    z: Floats
    """(2 m,)"""
    eta: Floats
    """(K,)"""
    k_delta: Floats
    primal: float
    dual: float
    """A lower bound of the optimum; -inf if no nearby point satisfies psi delta = 0."""
    outer: int
    steps: int
    residual: float
    """The largest violation of (4.4)."""
    seconds: float

    @property
    def delta(self) -> Floats:
        m = len(self.z) // 2
        return self.z[:m] - self.z[m:]

    @property
    def gap(self) -> float:
        return self.primal - self.dual

    def is_within(self, tol: float, least: float) -> bool:
        """Whether the gap is at most tol |primal|, or `least`, below which it counts as 0."""
        return self.gap <= tol * abs(self.primal) + least


class RowCache:
    """LRU cache of kernel rows."""

    def __init__(self, window: Window, max_bytes: int, dtype: type) -> None:
        self._window = window
        per_row = max(1, len(window) * np.dtype(dtype).itemsize)
        count = min(len(window), max(1, max_bytes // per_row))
        self._slots: npt.NDArray[Any] = np.empty((count, len(window)), dtype)
        self._place: OrderedDict[int, int] = OrderedDict()
        self.computed = 0

    def get(self, row: int) -> npt.NDArray[Any]:
        """(m,): K between this row and all; valid until the next call."""
        slot = self._place.get(row)
        if slot is None:
            if len(self._place) < len(self._slots):
                slot = len(self._place)
            else:
                _, slot = self._place.popitem(last=False)
            self._slots[slot] = self._window.rows_of_kernel(np.array([row]))[0]
            self._place[row] = slot
            self.computed += 1
        self._place.move_to_end(row)
        kernel_row: npt.NDArray[Any] = self._slots[slot]
        return kernel_row


@dataclass(frozen=True, slots=True, eq=False)
class Paired:
    """Q = [K -K; -K K] by K alone: one Cholesky factorisation of m rows per step."""

    k: Floats
    check: Callable[[], None]

    def product(self, z: Floats) -> Floats:
        m = len(self.k)
        half = product(self.k, z[:m] - z[m:])
        return np.concatenate([half, -half])

    def factor(self, diagonal: Floats) -> Solve:
        self.check()
        m = len(self.k)
        first, second = diagonal[:m], diagonal[m:]
        low, high = np.minimum(first, second), np.maximum(first, second)
        ridge = low / (1.0 + low / high)  # 1 / (1/first + 1/second), without overflow
        upper = cholesky(self.k, ridge)

        def solve(b: Floats) -> Floats:
            one, two = b[:, :m], b[:, m:]
            right = ridge * (one / first - two / second)
            t = np.array(right, order="C")
            solve_factored(upper, t)
            rest = right - ridge * t - np.array([product(self.k, row) for row in t])
            solve_factored(upper, rest)
            t += rest
            k_t = right - ridge * t
            # Of the two, the one with the larger diagonal by division, the other by the difference:
            # a division by nearly 0 would leave only rounding errors.
            left, right = (one - k_t) / first, (two + k_t) / second
            is_left = first >= second
            left, right = np.where(is_left, left, t + right), np.where(is_left, left - t, right)
            return np.concatenate([left, right], axis=1)

        return solve


def at_once(window: Window, tol: float, check: Callable[[], None]) -> Iterator[Point]:
    """The interior point method on all rows. Stores K (m, m) and two copies of it."""
    began, m = time.perf_counter(), len(window)
    k = window.square(np.arange(m), check)
    quadratic: Quadratic = Paired(k, check)
    p = np.concatenate([window.epsilon - window.y, window.epsilon + window.y])
    a = np.concatenate([window.psi, -window.psi], axis=1)
    upper = np.concatenate([window.c, window.c])
    goal = min(1e-3 * tol, 1e-8)
    tries = [(upper, goal), (upper, 1e-13)]
    if upper.max() > _MANAGEABLE:
        # The optimum for a smaller c is also a valid answer and bound for this one.
        tries.append((np.minimum(upper, _MANAGEABLE), goal))
    for outer, (most, accuracy) in enumerate(tries, 1):
        solved = minimise(quadratic, p, a, np.zeros(len(window.psi)), most, max(accuracy, 1e-13))
        for z in (subproblem.snapped(solved.z, most), solved.z):
            delta = z[:m] - z[m:]
            moved = feasible(delta, window.psi, window.c)
            delta = delta if moved is None else moved
            yield _valued(
                window, _split(delta), solved.eta, product(k, delta), moved is not None, outer,
                solved.iterations, time.perf_counter() - began,
            )  # fmt: skip


def decomposed(
    window: Window,
    method: subproblem.Method,
    start: tuple[Floats, Floats] | None,
    kkt: float,
    check: Callable[[], None],
    *,
    working: int,
    fresh: int,
    cache_bytes: int,
    tol: float,
) -> Iterator[Point]:
    """Algorithm 4, from delta and eta on; yields a point whenever (4.4) is within the tolerance.

    working (n_B), fresh (n_c): coordinates of a working set, and how many of them are new. If
    `working` is 2 m or more there is one set of all coordinates: the method runs without
    decomposition.
    """
    began, m, k = time.perf_counter(), len(window), len(window.psi)
    z, eta = np.zeros(2 * m), np.zeros(k)
    k_delta = np.zeros(m)
    if start is not None:
        z, eta = _split(np.clip(start[0], -window.c, window.c)), start[1].copy()
        k_delta = window.k_delta(z[:m] - z[m:], check)
    upper = np.concatenate([window.c, window.c])
    gram: Floats | None = None
    rows: RowCache | None = None
    if working >= 2 * m:
        gram = window.square(np.arange(m), check)
    else:
        rows = RowCache(window, cache_bytes, np.float32 if tol >= _SINGLE else np.float64)
    off = window.violations(z, k_delta, eta)
    chosen = np.argsort(-off, kind="stable")[: min(working, 2 * m)]
    inner, steps, many = 0.5 * kkt, 0, fresh
    failures = 0
    for outer in range(1, _MAX_OUTER):
        check()
        part, coordinates = _coordinates(window, z, k_delta, eta, chosen, gram)
        answer: subproblem.Answer = method(part, inner, check)
        steps += answer.steps
        change = answer.z - z[chosen]
        z[chosen], eta = answer.z, answer.eta
        delta = z[:m] - z[m:]
        if rows is None or outer % _RECOMPUTE_EVERY == 0:
            k_delta = _recomputed(window, delta, gram, check)
        else:
            moved = _summed(part.row, part.sign * change, len(coordinates))
            k_delta = _added(k_delta, rows, coordinates, moved, check)
        off = window.violations(z, k_delta, eta)
        apart = float(np.abs(products(window.psi, delta)).max(initial=0.0))
        residual = max(float(off.max()), apart)
        failures = 0 if answer.converged else failures + 1
        is_over = failures >= (1 if gram is not None else _MAX_FAILURES)
        if residual <= kkt or is_over:
            k_delta = _recomputed(window, delta, gram, check)
            off = window.violations(z, k_delta, eta)
            bound = feasible(delta, window.psi, window.c)
            best, k_best = delta, k_delta
            if bound is not None and not np.array_equal(bound, delta):
                best, k_best = bound, _recomputed(window, bound, gram, check)
            yield _valued(
                window, _split(best), eta, k_best, bound is not None, outer, steps,
                time.perf_counter() - began, residual,
            )  # fmt: skip
            if is_over:
                return
            kkt *= 0.3
            inner = min(inner, 0.5 * kkt)
        if gram is None:
            chosen, new = _next_set(z, upper, off, chosen, working, many)
            many = max(_MIN_FRESH, min(many, new))
            if new == 0:
                inner = max(0.1 * inner, 1e-15)


def _recomputed(
    window: Window, delta: Floats, gram: Floats | None, check: Callable[[], None]
) -> Floats:
    return window.k_delta(delta, check) if gram is None else product(gram, delta)


def _summed(row: Ints, numbers: Floats, count: int) -> Floats:
    """(count,): the sum of the numbers at each index."""
    return np.bincount(row, numbers, count).astype(np.float64)


def _coordinates(
    window: Window, z: Floats, k_delta: Floats, eta: Floats, chosen: Ints, gram: Floats | None
) -> tuple[subproblem.Coordinates, Ints]:
    """The problem of these coordinates, and its rows."""
    m = len(window)
    rows, row = np.unique(chosen % m, return_inverse=True)
    sign = np.where(chosen < m, 1.0, -1.0)
    block: Floats = gram if gram is not None else window.square(rows, lambda: None)
    psi = np.ascontiguousarray(window.psi[:, rows])
    summed = _summed(row, sign * z[chosen], len(rows))
    target = window.y[rows] - (k_delta[rows] - product(block, summed))
    r = products(psi, summed) - products(window.psi, z[:m] - z[m:])
    upper = window.c[rows][row]
    part = subproblem.Coordinates(
        block, psi, row.astype(np.int64), sign, upper, target, window.epsilon, r, z[chosen], eta
    )
    return part, rows


def _added(
    k_delta: Floats, rows: RowCache, coordinates: Ints, moved: Floats, check: Callable[[], None]
) -> Floats:
    """K delta after a change of delta at these rows."""
    out = k_delta.copy()
    for at in np.flatnonzero(moved):
        check()
        out += np.multiply(rows.get(int(coordinates[at])), moved[at], dtype=np.float64)
    return out


def _next_set(
    z: Floats, upper: Floats, off: Floats, before: Ints, working: int, fresh: int
) -> tuple[Ints, int]:
    """The worst `fresh` coordinates and those of the previous set, its free ones first.

    Also the number of worst coordinates that are new.
    """
    order = np.argsort(-off, kind="stable")[:fresh]
    worst = order[off[order] > 0.0]
    is_in = np.zeros(len(z), bool)
    is_in[before] = True
    new = int(np.count_nonzero(~is_in[worst]))
    is_worst = np.zeros(len(z), bool)
    is_worst[worst] = True
    kept = before[~is_worst[before]]
    rank = np.where(z[kept] <= 0.0, 1, np.where(z[kept] >= upper[kept], 2, 0))
    kept = kept[np.argsort(rank, kind="stable")]
    return np.concatenate([worst, kept])[:working], new


def _split(delta: Floats) -> Floats:
    """z of delta: alpha and alpha* are never both above 0."""
    return np.concatenate([np.maximum(delta, 0.0), np.maximum(-delta, 0.0)])


def _valued(
    window: Window,
    z: Floats,
    eta: Floats,
    k_delta: Floats,
    is_feasible: bool,
    outer: int,
    steps: int,
    seconds: float,
    residual: float | None = None,
) -> Point:
    delta = z[: len(window)] - z[len(window) :]
    if residual is None:
        residual = float(window.violations(z, k_delta, eta).max())
    dual = window.dual(delta, k_delta) if is_feasible else -np.inf
    primal = window.primal(delta, k_delta, eta)
    return Point(z, eta, k_delta, primal, dual, outer, steps, residual, seconds)
