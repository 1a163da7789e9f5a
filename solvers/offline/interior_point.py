"""Dense interior point method for quadratic programs with simple bounds.

    min over z of  z'Q z / 2 + p.z   subject to  A z = r,  0 <= z <= upper  (which may be infinite)

Mehrotra's predictor-corrector method from an infeasible start. Q need not be positive definite: Q
plus a positive diagonal is factorised.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dualstream.solvers.jit import Floats
from dualstream.solvers.offline.dense_algebra import dot, factor, solve_factored, times

_MAX_ITERATIONS = 100
_TO_BOUNDARY = 0.995

Solve = Callable[[Floats], Floats]


class Quadratic(Protocol):
    """Q as an operator."""

    def product(self, z: Floats) -> Floats:
        """Q z, (n,)."""

    def factor(self, diagonal: Floats) -> Solve:
        """Factorise Q + diag(diagonal): returns a function that solves for each row b of a (k, n)
        array."""


@dataclass(frozen=True, slots=True, eq=False)
class Optimum:
    """Result of the method."""

    z: Floats
    """(n,), strictly between the bounds."""
    eta: Floats
    """(k,): multipliers of A z = r; the gradient Q z + p + A'eta is >= 0 at 0, <= 0 at the top."""
    iterations: int
    converged: bool


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """Q as a dense matrix (n, n)."""

    q: Floats

    def product(self, z: Floats) -> Floats:
        return product(self.q, z)

    def factor(self, diagonal: Floats) -> Solve:
        upper = cholesky(self.q, diagonal)

        def solve(b: Floats) -> Floats:
            x = np.array(b, order="C")
            solve_factored(upper, x)
            return x

        return solve


def product(q: Floats, z: Floats) -> Floats:
    """Q z."""
    out = np.empty(len(q))
    times(q, z, out)
    return out


def cholesky(q: Floats, diagonal: Floats) -> Floats:
    """U of Q + diag(diagonal) = U'U; if rounding makes a pivot <= 0, the diagonal is increased."""
    matrix = np.array(q, order="C")
    diagonal_of = np.diag_indices(len(diagonal))
    base = matrix[diagonal_of] + diagonal
    ridge = 0.0
    for _ in range(30):
        matrix[diagonal_of] = base + ridge
        if factor(matrix):
            return matrix
        ridge = max(100.0 * ridge, 1e-15 * float(np.abs(np.diag(q)).max(initial=1e-300)))
        matrix[...] = q
    return np.diag(np.sqrt(np.maximum(base, np.abs(q).sum(axis=1))))


@np.errstate(all="ignore")
def minimise(
    quadratic: Quadratic, p: Floats, a: Floats, r: Floats, upper: Floats, tol: float
) -> Optimum:
    """The minimum, to `tol` relative to the size of the objective and of each residual.

    p, upper (n,), upper > 0;  a (k, n) of full row rank;  r (k,).
    """
    n, k = len(p), len(r)
    top = np.flatnonzero(np.isfinite(upper))
    size = max(float(np.abs(p).max(initial=0.0)), 1e-300)
    z = np.minimum(0.5 * upper, 1.0)
    w = upper[top] - z[top]
    eta = np.zeros(k)
    slope = quadratic.product(z) + p
    s = np.maximum(slope, 0.0) + size
    t = np.maximum(-slope[top], 0.0) + size
    scale_d, scale_p = size, 1.0 + float(np.abs(r).max(initial=0.0))
    # Rounding error where the objective goes to 0.
    nothing = 1e-14 * size * float(np.minimum(upper, 1.0).sum())
    best, best_error = (z, eta), np.inf
    since_best = 0
    for iteration in range(_MAX_ITERATIONS):
        gradient = quadratic.product(z)
        residual_d = gradient + p + combined(eta, a) - s
        residual_d[top] += t
        residual_p = r - products(a, z)
        residual_u = upper[top] - z[top] - w
        complementary = dot(z, s) + dot(w, t)
        mu = complementary / (n + len(top))
        objective = abs(0.5 * dot(z, gradient)) + abs(dot(p, z))
        error = max(
            max(complementary - nothing, 0.0) / max(objective, 1e-300),
            float(np.abs(residual_d).max()) / scale_d,
            float(np.abs(residual_p).max(initial=0.0)) / scale_p,
        )
        if not np.isfinite(error):
            break
        since_best += 1
        if error < best_error:
            if error < 0.9 * best_error:
                since_best = 0
            best, best_error = (z, eta), error
        if error <= tol:
            return Optimum(z, eta, iteration, True)
        if since_best >= 12:
            break
        diagonal = s / z
        diagonal[top] += t / w
        solve = quadratic.factor(diagonal)
        through = solve(a) if k else np.empty((0, n))
        schur = np.einsum("in,jn->ij", through, a)

        def direction(
            rcs: Floats,
            rct: Floats,
            solve: Solve = solve,
            through: Floats = through,
            schur: Floats = schur,
            residuals: tuple[Floats, Floats, Floats] = (residual_d, residual_p, residual_u),
            point: tuple[Floats, Floats, Floats, Floats] = (z, w, s, t),
        ) -> tuple[Floats, Floats, Floats, Floats, Floats]:
            rd, rp, ru = residuals
            z, w, s, t = point
            g = rcs / z - rd
            g[top] -= (rct - t * ru) / w
            dz = solve(g[None])[0]
            d_eta = _solve_small(schur, products(a, dz) - rp)
            dz = dz - combined(d_eta, through)
            dw = ru - dz[top]
            return dz, dw, d_eta, (rcs - s * dz) / z, (rct - t * dw) / w

        dz, dw, _, ds, dt = direction(-z * s, -w * t)
        step = _longest((z, dz), (w, dw), (s, ds), (t, dt))
        after = dot(z + step * dz, s + step * ds) + dot(w + step * dw, t + step * dt)
        centre = mu * max(after / complementary, 0.0) ** 3
        dz, dw, d_eta, ds, dt = direction(centre - z * s - dz * ds, centre - w * t - dw * dt)
        step = _TO_BOUNDARY * _longest((z, dz), (w, dw), (s, ds), (t, dt))
        if not np.isfinite(dz).all() or not np.isfinite(d_eta).all():
            break
        z, w, eta = z + step * dz, w + step * dw, eta + step * d_eta
        s, t = s + step * ds, t + step * dt
    return Optimum(*best, _MAX_ITERATIONS, best_error <= tol)


def combined(weights: Floats, rows: Floats) -> Floats:
    """sum_k weights_k rows_k; einsum, unlike @, calls no BLAS."""
    return np.asarray(np.einsum("k,kn->n", weights, rows))


def products(rows: Floats, z: Floats) -> Floats:
    """rows z, (k,)."""
    return np.asarray(np.einsum("kn,n->k", rows, z))


def _solve_small(matrix: Floats, b: Floats) -> Floats:
    if not len(b):
        return b
    try:
        return np.asarray(np.linalg.solve(matrix, b), np.float64)
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.lstsq(matrix, b, rcond=None)[0], np.float64)


def _longest(*pairs: tuple[Floats, Floats]) -> float:
    """The longest step, at most 1, that leaves every first array >= 0 along its second."""
    step = 1.0
    for value, move in pairs:
        falling = move < 0.0
        if falling.any():
            step = min(step, float((-value[falling] / move[falling]).min()))
    return step
