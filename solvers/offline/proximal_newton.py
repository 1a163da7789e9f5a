"""Proximal Newton method for a smooth mean loss and lambda |w|_1: the local phase of RDA+.

    F(w) = (1/n) sum_i c_i Q(h_i.w; y_i) + lambda |w|_1 + sigma |w|^2 / 2, the intercept free

Lee, "Optimization methods for regularized convex formulations in machine learning" (thesis),
section 2.5 and Algorithm 2, with a proximal Newton method in place of LPS. It works on a set M of
coordinates: those that are not 0, those whose gradient is nearly lambda (2.46), and the intercept.
The printed algorithm stops at the minimum over M, which is not the minimum of F if M lacks a
coordinate. So this one then checks the full gradient, adds coordinates at 0 with |gradient| >
lambda to M, and continues.

Each Newton step minimises the quadratic model exactly: coordinate descent finds the signs, and one
factorisation solves for the weights with these signs. A step that lowers F by less than the model
predicts is damped (Levenberg, Marquardt). Sums run in a fixed order without BLAS: the same bits on
every machine.
"""

import math
from dataclasses import dataclass

import numpy as np

from dualstream.solvers.jit import (
    F8,
    F8_2D,
    I4,
    I8,
    RO_F8,
    RO_I4,
    RO_I8,
    Flags,
    Floats,
    Indices,
    Ints,
    kernel,
)
from dualstream.solvers.losses.loss_kernels import loss_at, loss_curvature, loss_slope, loss_value
from dualstream.solvers.rows.scalar import soft

MAX_MEMBERS = 500
"""Maximum size of M for a local phase: the cost of a factorisation is cubic in it."""
_ROUNDS = 20
_STEPS = 100
_REACHED, _STALLED, _FAILED = range(3)

# Rows of the scratch array.
_GRADIENT, _NEXT, _TRIAL, _LINEAR, _RESIDUAL, _CHECK, _RIGHT = range(7)
_N_SCRATCH = 7
_TINIEST = 1e-290


ROWS = tuple[RO_I8, RO_I4, RO_F8, RO_F8, RO_F8, float]
"""Rows, as kernels receive them: `Rows.arguments`."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """n rows in CSR form, labels -1 and 1 (or any number), and the weights c_i."""

    indptr: Ints
    indices: Indices
    values: Floats
    labels: Floats
    weights: Floats
    width: int
    bias: float
    """The last coordinate of every row, at index `width`."""

    @property
    def arguments(self) -> ROWS:
        return self.indptr, self.indices, self.values, self.labels, self.weights, self.bias

    def of_columns(self, members: Flags) -> "Rows":
        """The same rows restricted to some columns, renumbered."""
        column_of = np.full(self.width, -1, np.int32)
        count = int(np.count_nonzero(members))
        column_of[members] = np.arange(count, dtype=np.int32)
        indptr, nnz = np.zeros_like(self.indptr), len(self.values)
        indices, values = np.empty(nnz, np.int32), np.empty(nnz)
        nnz = pick_columns(
            self.indptr, self.indices, self.values, column_of, indptr, indices, values
        )
        return Rows(
            indptr, indices[:nnz], values[:nnz], self.labels, self.weights, count, self.bias
        )


@dataclass(frozen=True, slots=True, eq=False)
class Objective:
    """The terms of the objective F besides the rows."""

    loss: Floats
    """(6,): see losses.Loss.numbers; smooth losses only."""
    lam: float
    sigma: float


@dataclass(frozen=True, slots=True, eq=False)
class Optimum:
    """The minimum of F; the last coordinate of both arrays is the intercept."""

    weights: Floats
    """(width + 1,)"""
    gradient: Floats
    """(width + 1,): of F without lambda |w|_1."""
    objective: float
    optimality: float
    """delta of (2.45): the root mean square of the least subgradient of F."""


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """The minimum over M, and the gradient at the coordinates outside M."""

    optimum: Optimum
    missing: Flags
    """(width,): coordinates outside M that are not 0 at the minimum of F."""
    converged: bool


def minimise(
    rows: Rows, objective: Objective, start: Floats, members: Flags, tol: float
) -> Optimum | None:
    """The minimum of F, from `start` (width + 1,) and M = `members` (width,); `start` is 0 outside
    M.

    None if M grows beyond MAX_MEMBERS, or if the minimum was not found.
    """
    weights, members = start, members.copy()
    for _ in range(_ROUNDS):
        minimum = minimise_over(rows, objective, weights, members, tol, MAX_MEMBERS)
        if minimum is None or not minimum.converged:
            return None
        if not minimum.missing.any():
            return minimum.optimum
        weights = minimum.optimum.weights
        members |= minimum.missing
    return None


def minimise_over(
    rows: Rows, objective: Objective, start: Floats, members: Flags, tol: float, most: int
) -> Round | None:
    """The minimum of F over M, all other coordinates being 0; None if M has more than `most`."""
    lam, sigma, loss = objective.lam, objective.sigma, objective.loss
    weights = start.copy()
    gradient, scores = np.empty(rows.width + 1), np.empty(len(rows.labels))
    inside = rows.of_columns(members)
    size = inside.width + 1
    if size > most + 1:
        return None
    w = np.append(weights[:-1][members], weights[-1])
    status = newton(
        inside.arguments, loss, lam, sigma, tol, w, scores, np.empty((size, size)),
        np.empty((size, size)), np.empty((_N_SCRATCH, size)), np.empty(size, np.int64),
    )  # fmt: skip
    weights[:-1][members] = w[:-1]
    weights[-1] = w[-1]
    value = evaluate(rows.arguments, loss, lam, sigma, weights, scores, gradient)
    missing = ~members & (np.abs(gradient[:-1]) > lam + tol)
    optimum = Optimum(weights, gradient, value, optimality(weights, gradient, lam, rows.bias))
    return Round(optimum, missing, status != _FAILED and bool(np.isfinite(value)))


def mean_loss(rows: Rows, loss: Floats, weights: Floats) -> float:
    """(1/n) sum_i c_i Q(h_i.w; y_i)."""
    scores, gradient = np.empty(len(rows.labels)), np.empty(rows.width + 1)
    return float(evaluate(rows.arguments, loss, 0.0, 0.0, weights, scores, gradient))


@kernel
def pick_columns(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    column_of: RO_I4,
    out_indptr: I8,
    out_indices: I4,
    out_values: F8,
) -> int:
    """Write the entries whose new index is >= 0, at that index; return their number."""
    nnz = 0
    for i in range(indptr.shape[0] - 1):
        for p in range(indptr[i], indptr[i + 1]):
            if column_of[indices[p]] >= 0:
                out_indices[nnz], out_values[nnz] = column_of[indices[p]], values[p]
                nnz += 1
        out_indptr[i + 1] = nnz
    return nnz


@kernel
def evaluate(
    rows: ROWS, loss: RO_F8, lam: float, sigma: float, w: RO_F8, scores: F8, gradient: F8
) -> float:
    """F(w); writes the scores (n,), and the gradient (width + 1,) of F without lambda |w|_1."""
    indptr, indices, values, labels, weights, bias = rows
    n, end = labels.shape[0], w.shape[0] - 1
    value = penalty = 0.0
    for j in range(end):
        gradient[j] = sigma * w[j]
        penalty += lam * abs(w[j]) + 0.5 * sigma * w[j] * w[j]
    gradient[end] = 0.0
    for i in range(n):
        z = bias * w[end]
        for p in range(indptr[i], indptr[i + 1]):
            z += values[p] * w[indices[p]]
        scores[i] = z
        y, share = labels[i], weights[i] / n
        value += share * loss_value(z, y, loss_at(loss, 0))
        g = share * loss_slope(z, y, loss_at(loss, 0))
        for p in range(indptr[i], indptr[i + 1]):
            gradient[indices[p]] += g * values[p]
        gradient[end] += g * bias
    return value + penalty


@kernel
def optimality(w: RO_F8, gradient: RO_F8, lam: float, bias: float) -> float:
    """delta of (2.45); an unused intercept does not count."""
    end, total = w.shape[0] - 1, 0.0
    for j in range(end):
        if w[j] == 0.0:
            rest = max(abs(gradient[j]) - lam, 0.0)
        else:
            rest = gradient[j] + (lam if w[j] > 0.0 else -lam)
        total += rest * rest
    total += gradient[end] * gradient[end]
    count = end + (1 if bias != 0.0 else 0)
    return math.sqrt(total / max(count, 1))


@kernel(inner=True)
def hessian(rows: ROWS, loss: RO_F8, sigma: float, scores: RO_F8, h: F8_2D) -> None:
    """Write the second derivative of the smooth part of F, (k + 1, k + 1)."""
    indptr, indices, values, labels, weights, bias = rows
    n, end = labels.shape[0], h.shape[0] - 1
    h[:, :] = 0.0
    for i in range(n):
        q = loss_curvature(scores[i], labels[i], loss_at(loss, 0))
        q *= weights[i] / n
        if q == 0.0:
            continue
        last = indptr[i + 1]
        for p in range(indptr[i], last):
            row, x = indices[p], q * values[p]
            for r in range(p, last):
                h[row, indices[r]] += x * values[r]
            h[row, end] += x * bias
        h[end, end] += q * bias * bias
    for j in range(end):
        h[j, j] += sigma
        for r in range(j + 1, end + 1):
            h[r, j] = h[j, r]


@kernel(inner=True)
def steepest_curvature(rows: ROWS, loss: RO_F8, sigma: float, sums: F8) -> float:
    """Upper bound of the diagonal entries of `hessian`, over all w. `sums` is scratch."""
    indptr, indices, values, _, weights, bias = rows
    n, end = weights.shape[0], sums.shape[0] - 1
    sums[:] = sigma
    sums[end] = _TINIEST
    most = 0.25 if loss[0] != 0.0 else 1.0 / loss[3]
    for i in range(n):
        q = most * weights[i] / n
        for p in range(indptr[i], indptr[i + 1]):
            sums[indices[p]] += q * values[p] * values[p]
        sums[end] += q * bias * bias
    largest = 0.0
    for j in range(end + 1):
        largest = max(largest, sums[j])
    return largest


@kernel(inner=True)
def solve_symmetric(a: F8_2D, size: int, b: F8) -> bool:
    """b = A^-1 b for a positive definite A, given and overwritten in its upper half.

    Cholesky factorisation with separate diagonal, A = L D L'. The lower half of column 0 stores the
    diagonal of A. Returns False if rounding error dominates a pivot.
    """
    for k in range(size):
        if not a[k, k] > 1e-14 * a[k, 0]:
            return False
        for i in range(k + 1, size):
            share = a[k, i] / a[k, k]
            if share != 0.0:
                for j in range(i, size):
                    a[i, j] -= share * a[k, j]
    for k in range(size):
        share = b[k] / a[k, k]
        for j in range(k + 1, size):
            b[j] -= share * a[k, j]
        b[k] = share
    for k in range(size - 1, -1, -1):
        total = b[k]
        for j in range(k + 1, size):
            total -= a[k, j] / a[k, k] * b[j]
        b[k] = total
    return True


@kernel(inner=True)
def solve_with_signs(
    h: F8_2D,
    damping: float,
    linear: F8,
    lam: float,
    bias: float,
    u: F8,
    residual: F8,
    a: F8_2D,
    b: F8,
    chosen: I8,
) -> bool:
    """Set u to the model's minimum among vectors with the signs of u, if that is the global
    minimum.

    h         (k + 1, k + 1)   second derivative, damped by `damping`
    linear    (k + 1,)         the model is linear.u + u'(h + damping)u / 2 + lam |u|_1
    u         (k + 1,)         with the signs; written on success only
    residual, a, b, chosen     scratch
    """
    end, size = u.shape[0] - 1, 0
    for j in range(end + 1):
        if (j < end and u[j] != 0.0) or (j == end and bias != 0.0):
            chosen[size] = j
            size += 1
    for r in range(size):
        j = chosen[r]
        for s in range(r, size):
            a[r, s] = h[j, chosen[s]]
        a[r, r] += damping
        a[r, 0] = a[r, r]
        b[r] = -linear[j]
        if j < end:
            b[r] -= lam if u[j] > 0.0 else -lam
    if not solve_symmetric(a, size, b):
        return False
    for j in range(end + 1):
        residual[j] = linear[j]
    for r in range(size):
        j = chosen[r]
        if j < end and not b[r] * u[j] > 0.0:
            return False
        for i in range(end + 1):
            residual[i] += b[r] * h[j, i]
        residual[j] += damping * b[r]
    at = 0
    for j in range(end):
        if at < size and chosen[at] == j:
            at += 1
        elif abs(residual[j]) > lam * (1.0 + 1e-12):
            return False
    for r in range(size):
        u[chosen[r]] = b[r]
    return True


@kernel(inner=True)
def minimise_model(
    h: F8_2D, damping: float, lam: float, bias: float, w: F8, scratch: F8_2D, a: F8_2D, chosen: I8
) -> None:
    """u = argmin of  g.(u - w) + (u - w)'(h + damping)(u - w) / 2 + lam |u|_1.

    Coordinate descent that tests after every few sweeps whether its signs are those of the minimum.
    If they never are, u is the last iterate. g and u are rows of `scratch`.
    """
    gradient, u, residual = scratch[_GRADIENT], scratch[_NEXT], scratch[_RESIDUAL]
    linear = scratch[_LINEAR]
    end = w.shape[0] - 1
    top = end + 1 if bias != 0.0 else end
    for j in range(end + 1):
        u[j], residual[j] = w[j], gradient[j]
        linear[j] = gradient[j] - damping * w[j]
    for j in range(top):
        if w[j] != 0.0:
            for i in range(end + 1):
                linear[i] -= w[j] * h[j, i]
    for _ in range(40):
        for _ in range(5):
            for j in range(top):
                curve = h[j, j] + damping
                t = u[j] - residual[j] / curve
                new = soft(t, lam / curve) if j < end else t
                move = new - u[j]
                if move != 0.0:
                    for i in range(end + 1):
                        residual[i] += move * h[j, i]
                    residual[j] += damping * move
                    u[j] = new
        if solve_with_signs(
            h, damping, linear, lam, bias, u, scratch[_CHECK], a, scratch[_RIGHT], chosen
        ):
            return


@kernel
def newton(
    rows: ROWS,
    loss: RO_F8,
    lam: float,
    sigma: float,
    tol: float,
    w: F8,
    scores: F8,
    h: F8_2D,
    a: F8_2D,
    scratch: F8_2D,
    chosen: I8,
) -> int:
    """Minimise F over all k columns and the intercept, starting at w, in place.

    Returns whether delta of (2.45) reached `tol`, or the rounding limit, or neither.

    w         (k + 1,)         read and written
    h, a      (k + 1, k + 1)   scratch
    scores    (n,)             scratch
    scratch   (7, k + 1), chosen (k + 1,)
    Cost of a step: O(sum over rows of their entries^2 + k^3).
    """
    end, bias, damping = w.shape[0] - 1, rows[5], 0.0
    gradient, u, trial = scratch[_GRADIENT], scratch[_NEXT], scratch[_TRIAL]
    value = evaluate(rows, loss, lam, sigma, w, scores, gradient)
    steepest = steepest_curvature(rows, loss, sigma, trial)
    for _ in range(_STEPS):
        if not abs(value) < np.inf:
            return _FAILED
        distance = optimality(w, gradient, lam, bias)
        if distance <= tol:
            return _REACHED
        hessian(rows, loss, sigma, scores, h)
        damping = max(damping, 1e-12 * steepest)
        accepted = False
        for _ in range(80):
            minimise_model(h, damping, lam, bias, w, scratch, a, chosen)
            promised = 0.0
            for j in range(end + 1):
                move = u[j] - w[j]
                promised += move * gradient[j]
                if j < end:
                    promised += lam * (abs(u[j]) - abs(w[j]))
            reached = evaluate(rows, loss, lam, sigma, u, scores, trial)
            # Where differences of F vanish in rounding, the gradient still decides.
            is_flat = not promised < -1e-12 * abs(value)
            if reached <= value + 1e-4 * promised and not is_flat:
                accepted = True
                break
            if is_flat:
                accepted = optimality(u, trial, lam, bias) < 0.5 * distance
                if not accepted:
                    return _STALLED
                break
            damping = max(10.0 * damping, 1e-6 * steepest)
        if not accepted:
            return _FAILED
        damping *= 0.01
        value = reached
        for j in range(end + 1):
            w[j], gradient[j] = u[j], trial[j]
    return _FAILED
