"""The same problems for an outside solver: Clarabel, an interior point method for cones."""

import clarabel
import numpy as np
from scipy import sparse

from dualstream.solvers.losses.loss_table import make_loss
from tests.solvers.offline.rows import dense, loss_of


def optimum(batch, loss, rho, bias=False, free=False):
    """The least possible objective; the last coordinate is not penalised with `free`."""
    x, y = dense(batch, bias), batch.labels
    share = batch.weights / batch.weights.sum()
    solve = _logistic if loss == "logistic" else _piecewise
    penalty = np.full(x.shape[1], rho)
    if free:
        penalty[-1] = 0.0
    return solve(x, y, share, penalty, make_loss(loss, loss_of(loss)))


def _piecewise(x, y, share, penalty, loss):
    """Q(z) = min of e^2 / (2 gamma) + hi p - lo q over e + p - q + d = r, |d| <= eps, p, q >= 0.

    That is the conjugate of b^2 gamma / 2 + eps |b| on [lo, hi], r = t - sgn z.
    """
    n, dim = x.shape
    sgn, t = (y, np.ones(n)) if loss.margin else (np.ones(n), y)
    eye, none = sparse.identity(n), sparse.csc_matrix((n, n))
    curvature = share / loss.gamma if loss.gamma else np.zeros(n)
    quadratic = sparse.diags(np.concatenate([penalty, curvature, np.zeros(3 * n)]))
    hi, lo = (share * end if np.isfinite(end) else np.zeros(n) for end in (loss.hi, -loss.lo))
    linear = np.concatenate([np.zeros(dim + n), hi, lo, np.zeros(n)])
    signed = sparse.csc_matrix(sgn[:, None] * x)
    wide = sparse.csc_matrix((n, dim))
    zero_of = [(1, loss.gamma == 0.0), (2, np.isinf(loss.hi)), (3, np.isinf(loss.lo))]
    blocks = [sparse.hstack([signed, eye, eye, -eye, eye])]
    rights, cones = [t], [clarabel.ZeroConeT(n)]
    for position, is_zero in zero_of:
        if is_zero:
            blocks.append(
                sparse.hstack([wide, *(eye if k == position else none for k in range(1, 5))])
            )
            rights.append(np.zeros(n))
            cones.append(clarabel.ZeroConeT(n))
    bounds = [(2, -1, 0.0), (3, -1, 0.0), (4, 1, loss.eps), (4, -1, loss.eps)]
    for position, sign, most in bounds:
        row = [sign * eye if k == position else none for k in range(1, 5)]
        blocks.append(sparse.hstack([wide, *row]))
        rights.append(np.full(n, most))
        cones.append(clarabel.NonnegativeConeT(n))
    return _solved(quadratic, linear, sparse.vstack(blocks), np.concatenate(rights), cones)


def _logistic(x, y, share, penalty, _):
    """log(1 + exp(-y z)) <= t where exp(-t) + exp(-y z - t) <= 1: two exponential cones a row."""
    n, dim = x.shape
    width = dim + 3 * n
    quadratic = sparse.diags(np.concatenate([penalty, np.zeros(3 * n)]))
    linear = np.concatenate([np.zeros(dim), share, np.zeros(2 * n)])
    rows, rights, cones = [], [], []
    for i in range(n):
        t, u, v = dim + i, dim + n + i, dim + 2 * n + i
        row = np.zeros((1, width))
        row[0, u] = row[0, v] = 1.0
        rows.append(row)
        rights.append([1.0])
        cones.append(clarabel.NonnegativeConeT(1))
        for at, slope in ((u, None), (v, y[i] * x[i])):
            row = np.zeros((3, width))
            row[0, t] = 1.0
            if slope is not None:
                row[0, :dim] = slope
            row[2, at] = -1.0
            rows.append(row)
            rights.append([0.0, 1.0, 0.0])
            cones.append(clarabel.ExponentialConeT())
    matrix = sparse.csc_matrix(np.vstack(rows))
    return _solved(quadratic, linear, matrix, np.concatenate(rights), cones)


def _solved(quadratic, linear, matrix, right, cones):
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    arguments = sparse.csc_matrix(quadratic), linear, sparse.csc_matrix(matrix), right, cones
    result = clarabel.DefaultSolver(*arguments, settings).solve()
    assert str(result.status) == "Solved", result.status
    return result.obj_val
