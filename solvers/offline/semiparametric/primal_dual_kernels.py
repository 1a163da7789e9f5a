"""PDSG and MPD: steps on a few coordinates of z, with multipliers for the equality constraints.

    min over z of  z'Q z / 2 + p.z   subject to  sum_i s_i z_i psi_i = r,  0 <= z_i <= u_i

with Q_ij = s_i s_j K(row_i, row_j) and p_i = epsilon - s_i target(row_i), s_i = 1 for an alpha and
-1 for an alpha*. Lee (thesis), Algorithm 5, corrected as in docs/internals/misprints.md: the
direction is P(z - H^-1 v) - z, the step along it the minimum over [0, 1], and eta ascends. Both
kernels share one state: `k_delta`, `excess` and `eta` follow z.
"""

import math

from dualstream.solvers.jit import F8, F8_2D, I8, RO_F8, RO_F8_2D, RO_I8, kernel

_TAU = 1e-8
"""Added to the block of the free coordinates of W, which may contain both alpha_i and alpha*_i."""
_NOT_YET = -1


@kernel(inline=True)
def violation(z: float, upper: float, slope: float) -> float:
    """|z - clip(z - slope, 0, upper)|: 0 if (4.4a) to (4.4c) are satisfied."""
    return abs(z - min(max(z - slope, 0.0), upper))


@kernel(inline=True)
def projected(z: float, upper: float, slope: float) -> float:
    """Size of the projected gradient: the part of the slope that z in [0, upper] can follow."""
    if z <= 0.0:
        return max(-slope, 0.0)
    return max(slope, 0.0) if z >= upper else abs(slope)


@kernel
def pdsg(
    gram: RO_F8_2D,
    psi: RO_F8_2D,
    row: RO_I8,
    sign: RO_F8,
    upper: RO_F8,
    target: RO_F8,
    epsilon: float,
    scale: RO_F8,
    tol: float,
    steps: int,
    width: int,
    z: F8,
    eta: F8,
    excess: F8,
    k_delta: F8,
    fit: F8,
    chosen: I8,
    work: F8_2D,
    block: F8_2D,
) -> int:
    """At most `steps` steps of the primal-dual scaled gradient method; the number of steps taken.

    gram      (u, u)   K between the rows
    psi       (K, u)
    row, sign, upper, z (n,)   the coordinates
    target    (u,)     y minus the contribution of other coordinates to K delta
    scale     (K,)     theta sum_i psi_i^2 / Q_ii, the divisor of eta's step
    width     n_W: coordinates of W
    eta, excess (K,)   excess = sum_i s_i z_i psi_i - r
    k_delta   (u,)     of these coordinates;  fit (u,), chosen (width,), work (4, width),
              block (width, width): scratch
    Cost of a step: O(K u + n + width u + width^3).
    """
    n, u, k = z.shape[0], target.shape[0], eta.shape[0]
    slope, move, worst = work[0], work[1], work[2]
    for taken in range(steps):
        for a in range(u):
            fit[a] = k_delta[a] - target[a]
        for j in range(k):
            for a in range(u):
                fit[a] += eta[j] * psi[j, a]
        count = 0
        for i in range(n):
            v = sign[i] * fit[row[i]] + epsilon
            off = violation(z[i], upper[i], v)
            if count < width or off > worst[count - 1]:
                at = count if count < width else width - 1
                while at > 0 and worst[at - 1] < off:
                    worst[at], chosen[at] = worst[at - 1], chosen[at - 1]
                    slope[at] = slope[at - 1]
                    at -= 1
                worst[at], chosen[at], slope[at] = off, i, v
                count = min(count + 1, width)
        apart = 0.0
        for j in range(k):
            apart = max(apart, abs(excess[j]))
        if worst[0] <= tol and apart <= tol:
            return taken
        # The free coordinates of W jointly, by Cholesky; the others separately.
        for a in range(count):
            i = chosen[a]
            is_free = 0.0 < z[i] < upper[i]
            for b in range(a + 1):
                o = chosen[b]
                both = is_free and 0.0 < z[o] < upper[o]
                block[a, b] = sign[i] * sign[o] * gram[row[i], row[o]] if both else 0.0
            block[a, a] = gram[row[i], row[i]] + (_TAU if is_free else 0.0)
            move[a] = slope[a]
        for a in range(count):
            for b in range(a + 1):
                total = block[a, b]
                for c in range(b):
                    total -= block[a, c] * block[b, c]
                if a == b:
                    block[a, a] = math.sqrt(max(total, 1e-300))
                else:
                    block[a, b] = total / block[b, b]
        for a in range(count):
            for b in range(a):
                move[a] -= block[a, b] * move[b]
            move[a] /= block[a, a]
        for a in range(count - 1, -1, -1):
            for b in range(a + 1, count):
                move[a] -= block[b, a] * move[b]
            move[a] /= block[a, a]
        falls = 0.0
        for a in range(count):
            i = chosen[a]
            move[a] = min(max(z[i] - move[a], 0.0), upper[i]) - z[i]
            falls += slope[a] * move[a]
        if not falls < 0.0:
            # A projected Newton direction need not be a descent direction; a diagonal one is.
            falls = 0.0
            for a in range(count):
                i = chosen[a]
                new = z[i] - slope[a] / gram[row[i], row[i]]
                move[a] = min(max(new, 0.0), upper[i]) - z[i]
                falls += slope[a] * move[a]
        curve = 0.0
        for a in range(count):
            i = chosen[a]
            for b in range(count):
                o = chosen[b]
                curve += move[a] * move[b] * sign[i] * sign[o] * gram[row[i], row[o]]
        length = 1.0 if -falls >= curve else -falls / curve
        for a in range(count):
            i = chosen[a]
            new = min(max(z[i] + length * move[a], 0.0), upper[i])
            if new <= 1e-14 * upper[i]:
                new = 0.0
            elif new >= upper[i] * (1.0 - 1e-14):
                new = upper[i]
            step = sign[i] * (new - z[i])
            z[i] = new
            if step != 0.0:
                r = row[i]
                for b in range(u):
                    k_delta[b] += step * gram[r, b]
                for j in range(k):
                    excess[j] += step * psi[j, r]
        for j in range(k):
            eta[j] += excess[j] / scale[j]
    return _NOT_YET


@kernel
def mpd(
    gram: RO_F8_2D,
    psi: RO_F8_2D,
    row: RO_I8,
    sign: RO_F8,
    upper: RO_F8,
    target: RO_F8,
    epsilon: float,
    tol: float,
    steps: int,
    z: F8,
    eta: F8,
    excess: F8,
    k_delta: F8,
    fit: F8,
    penalty: F8,
) -> int:
    """At most `steps` steps of the method of multipliers; the number of steps taken, or -1.

    Kienzle and Schoelkopf's minimal primal dual method. The thesis does not give its updates of mu;
    here they are the classical ones: eta += mu (A z - r) once the coordinates have settled, and mu
    doubles if |A z - r| has not fallen to a quarter by then. They have settled when the projected
    gradient is small. The residual of (4.4) would not do: it counts a coordinate as settled that is
    nearly at a bound, whatever its gradient. Such coordinates keep A z - r away from 0, and eta and
    mu grow without limit.

    penalty (2,)   mu, and |A z - r| at the last update of eta; the rest as for `pdsg`
    Cost of a step: O(K u + n).
    """
    n, u, k = z.shape[0], target.shape[0], eta.shape[0]
    for taken in range(steps):
        mu = penalty[0]
        for a in range(u):
            fit[a] = k_delta[a] - target[a]
        for j in range(k):
            pull = eta[j] + mu * excess[j]
            for a in range(u):
                fit[a] += pull * psi[j, a]
        best, worst, v = 0, -1.0, 0.0
        for i in range(n):
            slope = sign[i] * fit[row[i]] + epsilon
            off = projected(z[i], upper[i], slope)
            if off > worst:
                best, worst, v = i, off, slope
        apart = 0.0
        for j in range(k):
            apart = max(apart, abs(excess[j]))
        if worst <= tol:
            if apart <= tol:
                return taken
            for j in range(k):
                eta[j] += mu * excess[j]
            if apart > 0.25 * penalty[1]:
                penalty[0] = 2.0 * mu
            penalty[1] = apart
            continue
        r = row[best]
        curve = gram[r, r]
        for j in range(k):
            curve += mu * psi[j, r] * psi[j, r]
        new = min(max(z[best] - v / curve, 0.0), upper[best])
        step = sign[best] * (new - z[best])
        z[best] = new
        for b in range(u):
            k_delta[b] += step * gram[r, b]
        for j in range(k):
            excess[j] += step * psi[j, r]
    return _NOT_YET
