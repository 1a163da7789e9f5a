"""Kernels of finite_newton.py: normal equations of the active rows, and the line search.

h_i is row i followed by `bias`. Columns are renumbered: only those that occur, the intercept last.
Active rows are those with 1 - y_i z_i > 0.
"""

from dualstream.solvers.jit import F8, F8_2D, RO_F8, RO_I4, RO_I8, kernel


@kernel
def normal_equations(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    bias: float,
    labels: RO_F8,
    costs: RO_F8,
    short: RO_F8,
    matrix: F8_2D,
    right: F8,
) -> None:
    """matrix += sum of costs h h', right += sum of costs y h, over rows with short > 0.

    Indices increase within a row; only the upper triangle of the matrix (k, k) is written.
    """
    last = matrix.shape[0] - 1
    for i in range(labels.shape[0]):
        c = costs[i]
        if short[i] <= 0.0 or c == 0.0:
            continue
        end = indptr[i + 1]
        for p in range(indptr[i], end):
            a = c * values[p]
            j = indices[p]
            for q in range(p, end):
                matrix[j, indices[q]] += a * values[q]
            matrix[j, last] += a * bias
            right[j] += a * labels[i]
        matrix[last, last] += c * bias * bias
        right[last] += c * bias * labels[i]


@kernel
def step_length(short: RO_F8, change: RO_F8, costs: RO_F8, slope: float, curve: float) -> float:
    """argmin over t >= 0 of sum of costs max(0, short + t change)^2 / 2 + slope t + curve t^2 / 2.

    Convex and piecewise quadratic: bracketed Newton on its derivative ends after finitely many
    steps.
    """
    low, high, t = 0.0, -1.0, 1.0
    for _ in range(100):
        first, second = slope + curve * t, curve
        for i in range(short.shape[0]):
            at = short[i] + t * change[i]
            if at > 0.0:
                part = costs[i] * change[i]
                first += part * at
                second += part * change[i]
        if first > 0.0:
            high = t
        else:
            low = t
        if not second > 0.0:
            return t
        new = t - first / second
        if new <= low or (high >= 0.0 and new >= high):
            new = 0.5 * (low + high) if high >= 0.0 else 2.0 * t
        if abs(new - t) <= 1e-12 * t:
            return new
        t = new
    return t
