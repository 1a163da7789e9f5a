"""Duality gap certificate: an upper bound on the distance from the least objective.

The problem is  min over w of  (1/Delta) sum_n delta_n Q(h_n.w; y_n) + rho R(w).  For any served w
and any dual variables lambda with w' = (1/(rho Delta)) sum_n delta_n lambda_n h_n,

    gap = (1/Delta) sum_n delta_n [Q(z_n) + Q*(-lambda_n) + lambda_n z_n]
          + rho [R(w) + R*(w') - w.w'],                         z_n = h_n.w,

is primal minus dual, and each of its terms is >= 0 (Fenchel-Young). The dual value and the second
part are always exact. The first part needs every row that counts. A sliding window retains all of
them. Other windows average over the retained rows, weighted by delta: an estimate, not a bound. A
certificate measures optimisation, not how well the model predicts new rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dualstream.solvers.jit import F8, F8_2D, I4, I8, RO_F8, RO_F8_2D, kernel
from dualstream.solvers.losses.loss_kernels import gap_term, loss_at, loss_conjugate, loss_value


@dataclass(frozen=True, slots=True)
class Certificate:
    """Known bounds on the distance to the optimum; all zeros before the first row."""

    primal: float
    """The objective at the served weights (`dual + gap` if it is an estimate)."""
    dual: float
    """A lower bound of the least objective."""
    gap: float
    """primal - dual, from terms that are each >= 0."""
    relative_gap: float
    """gap / max(|primal|, |dual|), 0 where both are 0."""
    rows: int
    """Number of rows in the first part of the gap."""
    weight_share: float
    """The weight of these rows as a share of Delta, the weight of all rows that count."""
    estimate: bool
    """Whether rows that count are missing, which makes gap and primal estimates."""


def relative_gap(gap: float, primal: float, dual: float) -> float:
    """The gap relative to the objective."""
    scale = max(abs(primal), abs(dual))
    return gap / scale if scale > 0.0 else 0.0


def summed(parts: Sequence[Certificate]) -> Certificate | None:
    """Certificate of the sum of several problems of the same rows; None for an empty list."""
    if not parts:
        return None
    primal = sum(part.primal for part in parts)
    dual = sum(part.dual for part in parts)
    gap = sum(part.gap for part in parts)
    return replace(
        parts[0],
        primal=primal,
        dual=dual,
        gap=gap,
        relative_gap=relative_gap(gap, primal, dual),
        weight_share=min(part.weight_share for part in parts),
        estimate=any(part.estimate for part in parts),
    )


@kernel
def row_sums(
    starts: I8,
    indices: I4,
    values: F8,
    rows: F8_2D,
    first: int,
    last: int,
    w: RO_F8_2D,
    fv: float,
    fz: float,
    bias: float,
    offset: float,
    beta: float,
    loss: RO_F8,
    out: F8,
) -> None:
    """Sums over the retained rows `first` to `last` (see forgetting_windows.Ring), newest first.

    w     (width, 1 or 2)  v, and z if there is one: the served weights are fv v + fz z
    bias                   last coordinate of every row
    offset                 of every score
    beta                   weight of a row relative to that of the next row
    loss  (6,)             see losses.Loss.numbers
    out   (4,)             sums of delta, delta [Q + Q* + lambda z], delta Q, delta Q*
    """
    last_coordinate, at_z = w.shape[0] - 1, w.shape[1] - 1
    decay = 1.0
    delta_sum = gap_sum = primal_sum = conjugate_sum = 0.0
    for i in range(last - 1, first - 1, -1):
        dv = dz = 0.0
        for p in range(starts[i], starts[i + 1]):
            dv += values[p] * w[indices[p], 0]
            dz += values[p] * w[indices[p], at_z]
        dv += bias * w[last_coordinate, 0]
        dz += bias * w[last_coordinate, at_z]
        z = fv * dv + fz * dz + offset
        y, dual = rows[i, 0], rows[i, 2]
        delta = decay * rows[i, 1]
        decay *= beta
        delta_sum += delta
        gap_sum += delta * gap_term(z, dual, y, loss_at(loss, 0))
        primal_sum += delta * loss_value(z, y, loss_at(loss, 0))
        conjugate_sum += delta * loss_conjugate(dual, y, loss_at(loss, 0))
    out[0], out[1], out[2], out[3] = delta_sum, gap_sum, primal_sum, conjugate_sum
