"""solve_semiparametric: kernel regression on a window, with an unpenalised basis."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import InvalidRow, InvalidSpec, ShapeMismatch
from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.offline.dense_algebra import dot
from dualstream.solvers.offline.options import read_options
from dualstream.solvers.offline.semiparametric import subproblem
from dualstream.solvers.offline.semiparametric.basis import (
    Basis,
    check_names,
    evaluate,
    independent,
    terms_of,
)
from dualstream.solvers.offline.semiparametric.decomposition import Point, at_once, decomposed
from dualstream.solvers.offline.semiparametric.solution import Semiparametric
from dualstream.solvers.offline.semiparametric.window import Window
from dualstream.solvers.offline.solution import Progress
from dualstream.solvers.rows.batch import Batch

MAX_AT_ONCE = 2500
"""Number of rows beyond which working sets are used by default."""

METHODS = ("ipm", "pdsg", "mpd")
_TOL = {"ipm": 1e-6, "pdsg": 1e-3, "mpd": 1e-3}
_KKT = 1e-3
_ZERO_GAP = 1e-12
"""A gap below this times the loss of answering 0 counts as 0: it is rounding error."""

Callback = Callable[[Progress], Any]


class _Cancelled(Exception):
    pass


def solve_semiparametric(
    x: Batch | npt.ArrayLike,
    y: npt.ArrayLike | None,
    basis: Basis,
    kernel_gamma: float,
    epsilon: float,
    c: float,
    method: str = "ipm",
    *,
    tol: float | None = None,
    kkt: float = _KKT,
    working: int | None = None,
    fresh: int = 100,
    width: int = 2,
    theta: float = 1.0,
    cache_bytes: int = 400_000_000,
    start: "Semiparametric | tuple[npt.ArrayLike, Mapping[str, float]] | None" = None,
    callback: Callback | None = None,
) -> Semiparametric:
    """Minimise |w|^2 / 2 + c sum_i c_i max(0, |y_i - h(x_i)| - epsilon) over w and beta.

    h(x) = <w, phi(x)> + sum_j beta_j psi_j(x), <phi(x), phi(z)> = exp(-kernel_gamma |x - z|^2);
    beta is not penalised. Lee (thesis), chapter 4.

    x           (n, dim) numbers, or a Batch, whose weights c_i are used, and whose labels are y
                if y is None
    basis       the psi_j: terms, or functions of dense rows (n, dim) giving (n,), or their values
                (n, K) at the rows, which `predict` then takes as well; those that depend on earlier
                ones on these rows are dropped, and listed
    c           per row, not divided by n
    method      `ipm`, interior points; `pdsg`, primal-dual scaled gradients; `mpd`, multipliers
    tol         relative gap that is proved at the end (1e-6, and 1e-3 for pdsg and mpd)
    kkt         largest violation of (4.4) at which pdsg, mpd and the decomposition compute the gap
    working     n_B, coordinates solved for at a time; 0: all; None: all up to 2,500 rows, else 500
    fresh       n_c, how many of them are new;  width: n_W of pdsg;  theta: its step in eta
    cache_bytes for rows of the kernel, if not all are stored
    start       an earlier answer, or (n,) delta and coefficients by name; ignored by `ipm` on all
                rows, because interior points cannot use it
    callback    called with a Progress at each evaluation of the gap and, with the bounds known by
                then, in between; returning True ends the run

    The same arguments give the same bits. Raises InvalidSpec, InvalidRow, ShapeMismatch.
    """
    rows = _rows_of(x, y)
    if method not in METHODS:
        raise InvalidSpec.not_one_of("/method", method, METHODS)
    tol = _number("tol", _TOL[method] if tol is None else tol, 0.0, 1.0)
    _number("kernel_gamma", kernel_gamma, 1e-100, 1e100)
    _number("epsilon", epsilon, 0.0, 1e100)
    _number("c", c, 1e-100, 1e100)
    options = {"kkt": kkt, "theta": theta, "fresh": fresh, "width": width}
    read_options("pdsg", options if working is None else options | {"working": working})
    if isinstance(cache_bytes, bool) or not isinstance(cache_bytes, int) or cache_bytes < 1:
        raise InvalidSpec("/cache_bytes", cache_bytes, "a whole number >= 1")
    terms = terms_of(basis)
    check_names(terms)
    design = basis if isinstance(basis, np.ndarray) else None
    if design is not None and len(design) != len(rows):
        raise ShapeMismatch(f"basis has shape {design.shape} for {len(rows)} rows")
    counted = np.flatnonzero(rows.weights > 0.0)
    if not len(counted):
        raise InvalidSpec("/x", f"{len(rows)} rows", "at least one row with a weight above 0")
    used = rows if len(counted) == len(rows) else rows.take(counted)
    raw = evaluate(terms, used, None if design is None else design[counted])
    kept = independent(raw)
    names = tuple(terms[j].name for j in kept)
    scaled = _Scaled(used, raw[kept], kernel_gamma, epsilon, c)
    working = _working(working, len(used), len(kept), method)
    solvers: dict[str, subproblem.Method] = {
        "ipm": subproblem.by_interior_point,
        "pdsg": subproblem.ByScaledGradient(width, theta),
        "mpd": subproblem.ByMultipliers(),
    }
    run = _Run(scaled, tol, callback)
    if method == "ipm" and working >= 2 * len(used):
        points = at_once(scaled.window, tol, run.check)
    else:
        points = decomposed(
            scaled.window, solvers[method], scaled.start(start, counted, len(rows), names), kkt,
            run.check, working=working, fresh=min(fresh, working), cache_bytes=cache_bytes, tol=tol,
        )  # fmt: skip
    status, point = run.follow(points)
    delta = np.zeros(len(rows))
    delta[counted] = point.delta * scaled.of_delta
    support = np.flatnonzero(delta)
    beta = point.eta * scaled.of_y / scaled.lengths
    # Coordinates off their bounds determine beta, if there are enough of them.
    free = (np.abs(point.delta) > 0.0) & (np.abs(point.delta) < scaled.window.c)
    is_unique = len(independent(scaled.window.psi[:, free])) == len(kept)
    return Semiparametric(
        names=names,
        dropped=tuple(t.name for j, t in enumerate(terms) if j not in kept),
        beta=beta,
        beta_is_unique=is_unique,
        delta=delta,
        support=rows.take(support),
        basis=tuple(terms[j] for j in kept),
        kernel_gamma=kernel_gamma,
        primal=point.primal * scaled.of_objective,
        dual=point.dual * scaled.of_objective,
        outer=point.outer,
        steps=point.steps,
        residual=point.residual * scaled.of_y,
        status=status,
        method=method,
        trace=tuple(run.trace),
    )


class _Scaled:
    """The window with y, c and the basis scaled to the order of 1, and the inverse scaling.

    With y = s y', w = s w', beta = s beta' the objective is s^2 times the one with c / s for c. So
    the numbers of the answer do not depend on the unit of y.
    """

    def __init__(self, rows: Batch, psi: Floats, gamma: float, epsilon: float, c: float) -> None:
        size = float(np.abs(rows.labels).max())
        self.of_y = size if size > 0.0 else 1.0
        self.of_delta = self.of_y
        self.of_objective = self.of_y * self.of_y
        self.lengths = _lengths(psi)
        bounds = c * rows.weights / self.of_y
        if not (0.0 < bounds.min() and bounds.max() < np.inf):
            raise InvalidSpec(
                "/c", c, f"a number within the float64 range for weights and labels up to {size:g}"
            )
        self.window = Window(
            rows,
            rows.labels / self.of_y,
            psi / self.lengths[:, None],
            gamma,
            epsilon / self.of_y,
            bounds,
        )

    def start(
        self,
        initial: "Semiparametric | tuple[npt.ArrayLike, Mapping[str, float]] | None",
        counted: Ints,
        n: int,
        names: Sequence[str],
    ) -> tuple[Floats, Floats] | None:
        """delta and eta in this scale."""
        if initial is None:
            return None
        if isinstance(initial, Semiparametric):
            delta, coefficients = initial.delta, initial.coefficients
        else:
            delta, coefficients = np.array(initial[0], np.float64), dict(initial[1])
        if delta.shape != (n,):
            raise ShapeMismatch(f"start has delta of shape {delta.shape}, expected {(n,)}")
        eta = np.array([float(coefficients.get(name, 0.0)) for name in names])
        if not (np.isfinite(delta).all() and np.isfinite(eta).all()):
            raise InvalidSpec("/start", "a number that is not finite", "finite numbers")
        return delta[counted] / self.of_delta, eta * self.lengths / self.of_y


class _Run:
    """Collects the points of a method until one is good enough, and reports progress."""

    def __init__(self, scaled: _Scaled, tol: float, callback: Callback | None) -> None:
        self._scaled, self._tol, self._callback = scaled, tol, callback
        self._began = time.perf_counter()
        window = scaled.window
        base = window.primal(
            np.zeros(len(window)), np.zeros(len(window)), np.zeros(len(window.psi))
        )
        self._least = _ZERO_GAP * max(base, dot(window.c, np.abs(window.y)))
        self.trace: list[Progress] = []
        # The answer 0 and its bound 0: no answer is worse than that.
        m, k = len(window), len(window.psi)
        self._best = Point(
            np.zeros(2 * m), np.zeros(k), np.zeros(m), base, 0.0, 0, 0, math.inf, 0.0
        )
        self._looks = 0

    def check(self) -> None:
        """Raise if the callback ended the run."""
        if self._callback is not None:
            best = self._best
            if self._callback(self._progress(best.primal, best.dual)) is True:
                raise _Cancelled

    def follow(self, points: Iterator[Point]) -> tuple[str, Point]:
        with np.errstate(all="ignore"):
            try:
                for point in points:
                    self._take(point)
                    if self._best.is_within(self._tol, self._least):
                        return "converged", self._best
                    self.check()
            except _Cancelled:
                return "cancelled", self._best
        return "stalled", self._best

    def _take(self, point: Point) -> None:
        """Keep the better primal and the better bound, which may come from different points."""
        self.trace.append(self._progress(point.primal, point.dual))
        lower = max(self._best.dual, point.dual)
        best = point if point.primal <= self._best.primal else self._best
        self._best = replace(best, dual=lower, outer=point.outer, steps=point.steps)

    def _progress(self, primal: float, dual: float) -> Progress:
        size = self._scaled.of_objective
        self._looks += 1
        return Progress(
            float(self._looks), time.perf_counter() - self._began,
            primal * size, dual * size, (primal - dual) * size,
        )  # fmt: skip


def _rows_of(x: Batch | npt.ArrayLike, y: npt.ArrayLike | None) -> Batch:
    """Rows with numeric labels."""
    if isinstance(x, Batch):
        rows = x if y is None else x.with_labels(y)
    else:
        if y is None:
            raise InvalidSpec("/y", None, "labels: x is not a batch")
        rows = Batch.from_dense(np.asarray(x, np.float64), y)
    missing = np.flatnonzero(np.isnan(rows.labels))
    if len(missing):
        raise InvalidRow(int(missing[0]), "the row has no label")
    return rows


def _working(working: int | None, m: int, k: int, method: str) -> int:
    """n_B; 2 m if all coordinates are solved for at once."""
    if working == 0 or (working is None and m <= MAX_AT_ONCE):
        return 2 * m
    working = 500 if working is None else working
    if working < k + 1:
        raise InvalidSpec("/working", working, f"above {k}, the number of basis functions")
    return min(working, 2 * m)


def _lengths(psi: Floats) -> Floats:
    """(K,): the root mean square of each row, safe near the ends of the float64 range."""
    largest = np.abs(psi).max(axis=1, initial=0.0)
    return np.asarray(largest * np.sqrt(np.mean((psi / largest[:, None]) ** 2, axis=1)))


def _number(name: str, value: float, least: float, most: float) -> float:
    is_number = isinstance(value, (int, float, np.floating)) and not isinstance(value, bool)
    if not (is_number and least <= value <= most):
        raise InvalidSpec(f"/{name}", value, f"a number in [{least:g}, {most:g}]")
    return float(value)
