"""Three methods for the subproblem of some coordinates, the others fixed: (4.5)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.offline.interior_point import Dense, minimise, product, products
from dualstream.solvers.offline.semiparametric.primal_dual_kernels import mpd, pdsg

_STEPS_AT_ONCE = 2_000_000
"""Numbers processed between two checks for cancellation."""
_SNAP = 1e-9
"""A coordinate this near to a bound is moved to it, relative to the bound and to the size of z."""


@dataclass(frozen=True, slots=True, eq=False)
class Coordinates:
    """Some coordinates of z, with the contributions of all others."""

    gram: Floats
    """(u, u): K between the rows."""
    psi: Floats
    """(K, u)"""
    row: Ints
    """(n,): index of each coordinate's row among these rows."""
    sign: Floats
    """(n,): 1 for alpha, -1 for alpha*."""
    upper: Floats
    """(n,)"""
    target: Floats
    """(u,): y minus the contribution of the others to K delta."""
    epsilon: float
    r: Floats
    """(K,): the required value of sum_i s_i z_i psi_i."""
    z: Floats
    """(n,): the starting point."""
    eta: Floats
    """(K,)"""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """z and eta, the number of steps, and whether they converged."""

    z: Floats
    eta: Floats
    steps: int
    converged: bool


class Method(Protocol):
    """A method that solves the problem of `part` until (4.4) is within `tol`."""

    def __call__(self, part: Coordinates, tol: float, check: Callable[[], None]) -> Answer:
        """`check` is called from time to time, and raises to stop."""


def by_interior_point(part: Coordinates, tol: float, check: Callable[[], None]) -> Answer:
    """`tol` is that of the objective; a far smaller value than required costs one
    iteration more.
    """
    q = part.gram[np.ix_(part.row, part.row)] * np.outer(part.sign, part.sign)
    a = np.ascontiguousarray(part.psi[:, part.row] * part.sign)
    p = part.epsilon - part.sign * part.target[part.row]
    check()
    minimum = minimise(Dense(q), p, a, part.r, part.upper, min(1e-10, 1e-3 * tol))
    return Answer(
        snapped(minimum.z, part.upper), minimum.eta, minimum.iterations, minimum.converged
    )


def snapped(z: Floats, upper: Floats) -> Floats:
    """z with coordinates near a bound moved to it."""
    small = _SNAP * np.minimum(upper, max(1.0, z.max(initial=0.0)))
    out: Floats = np.where(z <= small, 0.0, np.where(upper - z <= small, upper, z))
    return out


@dataclass(frozen=True, slots=True)
class ByScaledGradient:
    """PDSG."""

    width: int = 2
    """n_W."""
    theta: float = 1.0
    most_steps: int = 2_000_000

    def __call__(self, part: Coordinates, tol: float, check: Callable[[], None]) -> Answer:
        z, eta, excess, k_delta = _start(part)
        diagonal = np.einsum("ii->i", part.gram)[part.row]
        scale = self.theta * ((part.psi[:, part.row] ** 2) / diagonal).sum(axis=1)
        width = min(self.width, len(z))
        fit, chosen = np.empty(len(part.target)), np.empty(width, np.int64)
        work, block = np.empty((4, width)), np.empty((width, width))

        def some(steps: int) -> int:
            return pdsg(
                part.gram, part.psi, part.row, part.sign, part.upper, part.target, part.epsilon,
                np.maximum(scale, 1e-300), tol, steps, width,
                z, eta, excess, k_delta, fit, chosen, work, block,
            )  # fmt: skip

        steps, done = _repeat(some, len(z), self.most_steps, check)
        return Answer(z, eta, steps, done)


@dataclass(frozen=True, slots=True)
class ByMultipliers:
    """MPD."""

    most_steps: int = 2_000_000

    def __call__(self, part: Coordinates, tol: float, check: Callable[[], None]) -> Answer:
        z, eta, excess, k_delta = _start(part)
        fit, penalty = np.empty(len(part.target)), np.array([1.0 / max(len(z), 1), np.inf])

        def some(steps: int) -> int:
            return mpd(
                part.gram, part.psi, part.row, part.sign, part.upper, part.target, part.epsilon,
                tol, steps, z, eta, excess, k_delta, fit, penalty,
            )  # fmt: skip

        steps, done = _repeat(some, len(z), self.most_steps, check)
        return Answer(z, eta, steps, done)


def _start(part: Coordinates) -> tuple[Floats, Floats, Floats, Floats]:
    z, eta = np.clip(part.z, 0.0, part.upper), part.eta.copy()
    delta: Floats = np.bincount(part.row, part.sign * z, len(part.target)).astype(np.float64)
    return z, eta, products(part.psi, delta) - part.r, product(part.gram, delta)


def _repeat(
    some: Callable[[int], int], n: int, most: int, check: Callable[[], None]
) -> tuple[int, bool]:
    """Run steps until convergence or `most` steps, in portions, with `check` called
    between them.
    """
    portion, steps = max(1, _STEPS_AT_ONCE // max(n, 1)), 0
    while steps < most:
        check()
        taken = some(portion)
        if taken >= 0:
            return steps + taken, True
        steps += portion
    return steps, False
