"""The kernel of SPDC: O(entries) per step, although the primal step changes every coordinate."""

from dualstream.solvers.jit import F8, F8_2D, RO_F8, RO_F8_2D, RO_I4, RO_I8, kernel
from dualstream.solvers.losses.loss_kernels import dual_argmin, loss_at

_W, _BEFORE, _U, _SINCE = range(4)
_SIZE = 4096
_BITS = 12


@kernel
def after(low: RO_F8_2D, high: RO_F8_2D, k: int) -> tuple[float, float]:
    """q^k and g_k; see lazy_updates.py."""
    a, b = k >> _BITS, k & (_SIZE - 1)
    return high[a, 0] * low[b, 0], low[b, 1] + low[b, 0] * high[a, 1]


@kernel
def catch_up(state: F8_2D, j: int, now: int, low: RO_F8_2D, high: RO_F8_2D) -> None:
    """Advance coordinate j to step `now`, and keep its value one step before."""
    k = now - int(state[j, _SINCE])
    if k > 0:
        w, u = state[j, _W], state[j, _U]
        q, g = after(low, high, k - 1)
        before = q * w + g * u
        state[j, _BEFORE] = before
        state[j, _W] = low[1, 0] * before + low[1, 1] * u
        state[j, _SINCE] = now


@kernel
def push(state: F8_2D, j: int, t: int, d: float, n: int, q: float, g: float) -> None:
    """The primal step of coordinate j at step t, whose row changed u by d / n."""
    w, u = state[j, _W], state[j, _U]
    state[j, _BEFORE] = w
    state[j, _W] = q * w + g * (u + d)
    state[j, _U] = u + d / n
    state[j, _SINCE] = t + 1


@kernel
def spdc_epoch(
    indptr: RO_I8,
    indices: RO_I4,
    values: RO_F8,
    y: RO_F8,
    k: RO_F8,
    loss: RO_F8,
    bias: float,
    sigma: float,
    theta: float,
    order: RO_I8,
    low: RO_F8_2D,
    high: RO_F8_2D,
    state: F8_2D,
    duals: F8,
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
        new = dual_argmin(m - s * old, s, y[i], loss_at(loss, 0))
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
