"""The relaxed problem of cutting planes: the least objective by the cuts so far.

    min over w, b, eta >= 0 of  rho |w|^2 / 2 + sum_k eta_k,   eta_k >= o_d - a_d.w - s_d b
                                                              for each cut d of part k
    max over alpha >= 0 of  o.alpha - |A'alpha|^2 / (2 rho) - B |s.alpha|,
                            sum of the alpha_d of a part <= 1,   w = A'alpha / rho

Lee (thesis), (5.17) and (5.18) with sum_d alpha_d sum_i d_i, divided by c:
docs/internals/misprints.md. Any feasible alpha gives a lower bound of the true objective, even if
cuts were left out. B bounds a free intercept: without it the first relaxed problem has no interior,
and some best intercept is within the bounds.
"""

from collections.abc import Callable

import numpy as np

from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.offline.dense_algebra import dot
from dualstream.solvers.offline.interior_point import Dense, Solve, combined, minimise, product


class Cuts:
    """All cuts so far: planes (count, width), and the products of each pair."""

    def __init__(self, width: int, parts: int) -> None:
        self.parts = parts
        self.count = 0
        self._planes = np.empty((16, width))
        self._gram = np.empty((16, 16))
        self._numbers = np.empty((3, 16))
        self.part = np.empty(0, np.int64)
        self.idle = np.empty(0, np.int64)
        """For how many consecutive relaxed problems each alpha was 0."""

    @property
    def planes(self) -> Floats:
        return self._planes[: self.count]

    @property
    def offsets(self) -> Floats:
        """(count,) o."""
        return self._numbers[0, : self.count]

    @property
    def slopes(self) -> Floats:
        """(count,) s, 0 unless the intercept is free."""
        return self._numbers[1, : self.count]

    def gram(self, chosen: Ints) -> Floats:
        return self._gram[np.ix_(chosen, chosen)]

    def add(self, plane: Floats, offset: float, slope: float, part: int) -> None:
        at = self.count
        if at == len(self._planes):
            self._grow()
        self._planes[at] = plane
        self.count += 1
        row = product(self.planes, plane)
        self._gram[at, : self.count] = row
        self._gram[: self.count, at] = row
        self._numbers[:2, at] = offset, slope
        self.part = np.append(self.part, part)
        self.idle = np.append(self.idle, 0)

    def _grow(self) -> None:
        room, width = 2 * len(self._planes), self._planes.shape[1]
        planes, gram, numbers = np.empty((room, width)), np.empty((room, room)), np.empty((3, room))
        n = self.count
        planes[:n], gram[:n, :n], numbers[:, :n] = self._planes, self._gram, self._numbers
        self._planes, self._gram, self._numbers = planes, gram, numbers


class Relaxed:
    """The optimum for some of the cuts."""

    def __init__(self, cuts: Cuts, chosen: Ints, rho: float, box: float, tol: float) -> None:
        self.alpha = np.zeros(cuts.count)
        self.intercept = 0.0
        self.weights = np.zeros(cuts.planes.shape[1])
        self.lower = 0.0
        self.levels = np.zeros(cuts.parts)
        """(parts,) eta_k."""
        if not len(chosen):
            return
        gram = cuts.gram(chosen) / rho
        offsets, slopes = cuts.offsets[chosen], cuts.slopes[chosen]
        alpha, self.intercept = _solve(
            gram, offsets, slopes, cuts.part[chosen], cuts.parts, box, tol
        )
        self.alpha[chosen] = alpha
        self.lower = (
            dot(offsets, alpha)
            - 0.5 * dot(alpha, product(gram, alpha))
            - (box * abs(dot(slopes, alpha)) if box > 0.0 else 0.0)
        )
        self.weights = combined(self.alpha, cuts.planes) / rho
        self.levels = np.zeros(cuts.parts)
        np.maximum.at(self.levels, cuts.part[chosen], self.values(cuts)[chosen])

    def values(self, cuts: Cuts) -> Floats:
        """(count,) o - a.w - s b."""
        values: Floats = (
            cuts.offsets - product(cuts.planes, self.weights) - self.intercept * cuts.slopes
        )
        return values


def _solve(
    gram: Floats, offsets: Floats, slopes: Floats, part: Ints, parts: int, box: float, tol: float
) -> tuple[Floats, float]:
    """alpha, feasible to the last bit, and the free intercept.

    In the interior point method's form: alpha, the slack of each part's sum below 1, and s.alpha as
    the difference of two numbers >= 0, in units of 1 / B.
    """
    n, is_free = len(offsets), box > 0.0
    used = np.unique(part)
    total = n + len(used) + 2 * is_free
    a = np.zeros((len(used) + is_free, total))
    a[np.searchsorted(used, part), np.arange(n)] = 1.0
    a[np.arange(len(used)), n + np.arange(len(used))] = 1.0
    r = np.ones(len(a))
    p = np.zeros(total)
    p[:n] = -offsets
    if is_free:
        a[-1, :n], a[-1, -2:], r[-1] = slopes, (-1.0 / box, 1.0 / box), 0.0
        p[-2:] = 1.0
    minimum = minimise(_Bordered(gram, total), p, a, r, np.full(total, np.inf), tol)
    alpha = np.maximum(minimum.z[:n], 0.0)
    sums = np.bincount(part, alpha, minlength=parts)
    # Slightly below 1, so that summing in another order cannot exceed 1.
    alpha /= np.maximum(1.0, sums * (1.0 + 1e-15))[part]
    return alpha, float(np.clip(minimum.eta[-1], -box, box)) if is_free else 0.0


class _Bordered:
    """Q bordered by zeros."""

    def __init__(self, q: Floats, total: int) -> None:
        self._inner, self._n, self._total = Dense(q), len(q), total

    def product(self, z: Floats) -> Floats:
        out = np.zeros(self._total)
        out[: self._n] = self._inner.product(z[: self._n])
        return out

    def factor(self, diagonal: Floats) -> Solve:
        n = self._n
        inner: Callable[[Floats], Floats] = self._inner.factor(diagonal[:n])

        def solve(b: Floats) -> Floats:
            return np.concatenate([inner(b[:, :n]), b[:, n:] / diagonal[n:]], axis=1)

        return solve
