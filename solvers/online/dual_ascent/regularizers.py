"""Regularizers R(w), their conjugates, and the map from dual variables to weights.

For every regularizer here w = grad R*(w'), with w' = u / (rho Delta) and u the weighted sum of the
rows. The certificate needs R(w) + R*(w') - w.w' for served weights w, in a form that rounding
cannot make negative. Elastic net and entropy are in `online/dual_ascent/general_kernels.py`, next
to the kernels that call their map.
"""

from dualstream.solvers.jit import F8, RO_F8_2D, kernel


@kernel
def l2_sums(w: RO_F8_2D, fv: float, fz: float, last: float, out: F8) -> None:
    """R(w) = |w|^2 / 2 with w = w': R, R* and R + R* - w.w' = |w - w'|^2 / 2, summed in order.

    w    (width, 1 or 2)  v, and z where there is one: served = fv v + fz z, w' = last v
    out  (3,)             R(served), R*(w'), R(served) + R*(w') - served.w'
    """
    z = w.shape[1] - 1
    primal = dual = excess = 0.0
    for j in range(w.shape[0]):
        served, dashed = fv * w[j, 0] + fz * w[j, z], last * w[j, 0]
        primal += served * served
        dual += dashed * dashed
        excess += (served - dashed) * (served - dashed)
    out[0], out[1], out[2] = 0.5 * primal, 0.5 * dual, 0.5 * excess
