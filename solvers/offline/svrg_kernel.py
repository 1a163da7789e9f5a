"""The kernel of SVRG: O(entries) per step."""

from dualstream.solvers.jit import F8, F8_2D, RO_F8, RO_F8_2D, RO_I4, RO_I8, kernel
from dualstream.solvers.losses.loss_kernels import loss_at, loss_slope

_V, _MU, _SINCE = range(3)
_SIZE = 4096
_BITS = 12


@kernel
def follow(state: F8_2D, j: int, now: int, low: RO_F8_2D, high: RO_F8_2D) -> None:
    """Advance coordinate j to step `now`: v <- q^k v - g_k mu; see lazy_updates.py."""
    k = now - int(state[j, _SINCE])
    if k > 0:
        a, b = k >> _BITS, k & (_SIZE - 1)
        q = high[a, 0] * low[b, 0]
        g = low[b, 1] + low[b, 0] * high[a, 1]
        state[j, _V] = q * state[j, _V] - g * state[j, _MU]
        state[j, _SINCE] = now


@kernel
def svrg_epoch(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    y: RO_F8,
    k: RO_F8,
    loss: RO_F8,
    bias: float,
    eta: float,
    order: RO_I8,
    anchored: RO_F8,
    low: RO_F8_2D,
    high: RO_F8_2D,
    state: F8_2D,
) -> None:
    """Steps of SVRG on the rows of `order`, in terms of v = w - wtilde.

    v <- v - eta { k_i [Q'(h_i.w) - Q'(h_i.wtilde)] h_i + rho v + mu }

    y, k     (n,)   labels; n c_i / Delta
    anchored (n,)   h_i.wtilde
    low, high       q^k and g_k of q = 1 - eta rho, g = eta; see lazy_updates.py
    state    (dim + 1, 3) updated: v, mu, and the step of v
    """
    last = state.shape[0] - 1
    for t in range(order.shape[0]):
        i = order[t]
        m = 0.0
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            follow(state, j, t, low, high)
            m += values[p] * state[j, _V]
        if bias != 0.0:
            follow(state, last, t, low, high)
            m += bias * state[last, _V]
        z = anchored[i]
        there = loss_slope(z, y[i], loss_at(loss, 0))
        here = loss_slope(z + m, y[i], loss_at(loss, 0))
        step = eta * k[i] * (here - there)
        if step != 0.0:
            for p in range(indptr[i], indptr[i + 1]):
                # Before the shrinking of step t + 1, hence divided by q.
                state[indices[p], _V] -= step * values[p] / low[1, 0]
            state[last, _V] -= step * bias / low[1, 0]
    for j in range(state.shape[0]):
        follow(state, j, order.shape[0], low, high)
        state[j, _SINCE] = 0.0


@kernel
def weighted_slopes(scores: RO_F8, labels: RO_F8, weights: RO_F8, loss: RO_F8, out: F8) -> None:
    """out_i = c_i Q'(z_i; y_i)."""
    for i in range(scores.shape[0]):
        out[i] = weights[i] * loss_slope(scores[i], labels[i], loss_at(loss, 0))
