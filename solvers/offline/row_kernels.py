"""Kernels over all rows: norms, scores, weighted sums, terms of the gap.

h_i is row i followed by `bias`, at index dim; w and u are (dim + 1,), their last entry used if bias
is not 0.
"""

from dualstream.solvers.jit import F8, RO_F8, RO_I4, RO_I8, Floats, Indices, Ints, f8, kernel, void
from dualstream.solvers.losses.loss_kernels import gap_term, loss_conjugate, loss_slope, loss_value


@kernel(void(RO_I8, RO_F8, f8, F8))
def square_norms(indptr: Ints, values: Floats, bias: float, out: Floats) -> None:
    """out_i = |h_i|^2."""
    for i in range(out.shape[0]):
        total = bias * bias
        for p in range(indptr[i], indptr[i + 1]):
            total += values[p] * values[p]
        out[i] = total


@kernel(void(RO_I8, RO_I4, RO_F8, f8, RO_F8, F8))
def scores_of(
    indptr: Ints, indices: Indices, values: Floats, bias: float, w: Floats, out: Floats
) -> None:
    """out_i = h_i.w."""
    intercept = bias * w[w.shape[0] - 1]
    for i in range(out.shape[0]):
        z = intercept
        for p in range(indptr[i], indptr[i + 1]):
            z += values[p] * w[indices[p]]
        out[i] = z


@kernel(void(RO_I8, RO_I4, RO_F8, f8, RO_F8, F8))
def add_rows(
    indptr: Ints, indices: Indices, values: Floats, bias: float, factors: Floats, u: Floats
) -> None:
    """u += sum_i factors_i h_i."""
    last = u.shape[0] - 1
    for i in range(factors.shape[0]):
        factor = factors[i]
        if factor != 0.0:
            for p in range(indptr[i], indptr[i + 1]):
                u[indices[p]] += factor * values[p]
            u[last] += factor * bias


@kernel(void(RO_F8, RO_F8, RO_F8, RO_F8, RO_F8, F8))
def sum_terms(
    scores: Floats, duals: Floats, labels: Floats, weights: Floats, loss: Floats, out: Floats
) -> None:
    """out = the sums of c Q(z), c Q*(-lambda) and c [Q(z) + Q*(-lambda) + lambda z].

    loss (6,): see losses.Loss.numbers; rows of weight 0 are skipped.
    """
    values = conjugates = gaps = 0.0
    for i in range(scores.shape[0]):
        c = weights[i]
        if c > 0.0:
            z, y, tau = scores[i], labels[i], duals[i]
            values += c * loss_value(z, y, loss[0], loss[1], loss[2], loss[3], loss[4], loss[5])
            conjugates += c * loss_conjugate(
                tau, y, loss[0], loss[1], loss[2], loss[3], loss[4], loss[5]
            )
            gaps += c * gap_term(z, tau, y, loss[0], loss[1], loss[2], loss[3], loss[4], loss[5])
    out[0], out[1], out[2] = values, conjugates, gaps


@kernel(void(RO_F8, RO_F8, RO_F8, F8))
def duals_at(scores: Floats, labels: Floats, loss: Floats, out: Floats) -> None:
    """out_i = -Q'(z_i; y_i): the dual variables that correspond to the scores."""
    for i in range(scores.shape[0]):
        out[i] = -loss_slope(
            scores[i], labels[i], loss[0], loss[1], loss[2], loss[3], loss[4], loss[5]
        )
