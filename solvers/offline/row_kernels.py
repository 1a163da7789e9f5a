"""Kernels over all rows: norms, scores, weighted sums, terms of the gap.

h_i is row i followed by `bias`, at index dim; w and u are (dim + 1,), their last entry used if bias
is not 0.
"""

from dualstream.solvers.jit import F8, RO_F8, RO_I4, RO_I8, kernel
from dualstream.solvers.losses.loss_kernels import (
    gap_term,
    loss_at,
    loss_conjugate,
    loss_slope,
    loss_value,
)


@kernel
def square_norms(indptr: RO_I8, values: RO_F8, bias: float, out: F8) -> None:
    """out_i = |h_i|^2."""
    for i in range(out.shape[0]):
        total = bias * bias
        for p in range(indptr[i], indptr[i + 1]):
            total += values[p] * values[p]
        out[i] = total


@kernel
def scores_of(indptr: RO_I8, indices: RO_I4, values: RO_F8, bias: float, w: RO_F8, out: F8) -> None:
    """out_i = h_i.w."""
    intercept = bias * w[w.shape[0] - 1]
    for i in range(out.shape[0]):
        z = intercept
        for p in range(indptr[i], indptr[i + 1]):
            z += values[p] * w[indices[p]]
        out[i] = z


@kernel
def add_rows(
    indptr: RO_I8, indices: RO_I4, values: RO_F8, bias: float, factors: RO_F8, u: F8
) -> None:
    """u += sum_i factors_i h_i."""
    last = u.shape[0] - 1
    for i in range(factors.shape[0]):
        factor = factors[i]
        if factor != 0.0:
            for p in range(indptr[i], indptr[i + 1]):
                u[indices[p]] += factor * values[p]
            u[last] += factor * bias


@kernel
def sum_terms(
    scores: RO_F8, duals: RO_F8, labels: RO_F8, weights: RO_F8, loss: RO_F8, out: F8
) -> None:
    """out = the sums of c Q(z), c Q*(-lambda) and c [Q(z) + Q*(-lambda) + lambda z].

    loss (6,): see losses.Loss.numbers; rows of weight 0 are skipped.
    """
    values = conjugates = gaps = 0.0
    for i in range(scores.shape[0]):
        c = weights[i]
        if c > 0.0:
            z, y, tau = scores[i], labels[i], duals[i]
            values += c * loss_value(z, y, loss_at(loss, 0))
            conjugates += c * loss_conjugate(tau, y, loss_at(loss, 0))
            gaps += c * gap_term(z, tau, y, loss_at(loss, 0))
    out[0], out[1], out[2] = values, conjugates, gaps


@kernel
def duals_at(scores: RO_F8, labels: RO_F8, loss: RO_F8, out: F8) -> None:
    """out_i = -Q'(z_i; y_i): the dual variables that correspond to the scores."""
    for i in range(scores.shape[0]):
        out[i] = -loss_slope(scores[i], labels[i], loss_at(loss, 0))
