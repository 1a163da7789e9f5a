"""The kernel of SPDC: O(entries) per step, although the primal step changes every coordinate."""

from dualstream.solvers.jit import (
    F8,
    F8_2D,
    RO_F8,
    RO_F8_2D,
    RO_I4,
    RO_I8,
    Floats,
    Indices,
    Ints,
    f8,
    i8,
    kernel,
    types,
    void,
)
from dualstream.solvers.losses.loss_kernels import dual_argmin

_W, _BEFORE, _U, _SINCE = range(4)
_SIZE = 4096
_BITS = 12


@kernel(types.UniTuple(f8, 2)(RO_F8_2D, RO_F8_2D, i8))
def after(low: Floats, high: Floats, k: int) -> tuple[float, float]:
    """q^k and g_k; see lazy_updates.py."""
    a, b = k >> _BITS, k & (_SIZE - 1)
    return high[a, 0] * low[b, 0], low[b, 1] + low[b, 0] * high[a, 1]


@kernel(void(F8_2D, i8, i8, RO_F8_2D, RO_F8_2D))
def catch_up(state: Floats, j: int, now: int, low: Floats, high: Floats) -> None:
    """Advance coordinate j to step `now`, and keep its value one step before."""
    k = now - int(state[j, _SINCE])
    if k > 0:
        w, u = state[j, _W], state[j, _U]
        q, g = after(low, high, k - 1)
        before = q * w + g * u
        state[j, _BEFORE] = before
        state[j, _W] = low[1, 0] * before + low[1, 1] * u
        state[j, _SINCE] = now


@kernel(void(F8_2D, i8, i8, f8, i8, f8, f8))
def push(state: Floats, j: int, t: int, d: float, n: int, q: float, g: float) -> None:
    """The primal step of coordinate j at step t, whose row changed u by d / n."""
    w, u = state[j, _W], state[j, _U]
    state[j, _BEFORE] = w
    state[j, _W] = q * w + g * (u + d)
    state[j, _U] = u + d / n
    state[j, _SINCE] = t + 1


@kernel(
    void(RO_I8, RO_I4, RO_F8, RO_F8, RO_F8, RO_F8, f8, f8, f8, RO_I8, RO_F8_2D, RO_F8_2D, F8_2D, F8)
)
def spdc_epoch(
    indptr: Ints,
    indices: Indices,
    values: Floats,
    y: Floats,
    k: Floats,
    loss: Floats,
    bias: float,
    sigma: float,
    theta: float,
    order: Ints,
    low: Floats,
    high: Floats,
    state: Floats,
    duals: Floats,
) -> None:
    """Steps of SPDC on the rows of `order`.

    lambda_i <- argmin of  Q*(-lambda) + lambda h_i.wbar + k_i (lambda - lambda_i)^2 / (2 sigma)
    w        <- (w + tau (u + d h_i)) / (1 + rho tau),  d = k_i times the change of lambda_i
    u        <- u + d h_i / n
    wbar     <- w + theta (w - w before)

    y, k   (n,)        labels; n c_i / Delta
    low, high          q^k and g_k of q = 1 / (1 + rho tau), g = tau q; see lazy_updates.py
    state  (dim + 1, 4) updated: w, w one step before, u, and the step of these
    duals  (n,) updated
    """
    n = y.shape[0]
    last = state.shape[0] - 1
    g = low[1, 1]
    for t in range(order.shape[0]):
        i = order[t]
        m = 0.0
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            catch_up(state, j, t, low, high)
            m += values[p] * (state[j, _W] + theta * (state[j, _W] - state[j, _BEFORE]))
        if bias != 0.0:
            catch_up(state, last, t, low, high)
            m += bias * (state[last, _W] + theta * (state[last, _W] - state[last, _BEFORE]))
        s = k[i] / sigma
        old = duals[i]
        new = dual_argmin(
            m - s * old, s, y[i], loss[0], loss[1], loss[2], loss[3], loss[4], loss[5]
        )
        duals[i] = new
        d = k[i] * (new - old)
        if d != 0.0:
            for p in range(indptr[i], indptr[i + 1]):
                j = indices[p]
                push(state, j, t, d * values[p], n, low[1, 0], g)
            if bias != 0.0:
                push(state, last, t, d * bias, n, low[1, 0], g)
    for j in range(state.shape[0]):
        catch_up(state, j, order.shape[0], low, high)
        state[j, _SINCE] = 0.0
