"""Dense linear algebra without BLAS, whose threads contend when cores are shared.

Sums run in a fixed order: the same bits on any number of threads.
"""

import math

from dualstream.solvers.jit import F8, F8_2D, RO_F8, RO_F8_2D, kernel

_BLOCK, _TILE = 32, 256


@kernel(apart=True, inner=True)
def subtract_four(
    out: F8,
    first: RO_F8,
    second: RO_F8,
    third: RO_F8,
    fourth: RO_F8,
    a: float,
    b: float,
    c: float,
    d: float,
) -> None:
    """out -= a first + b second + c third + d fourth."""
    for j in range(out.shape[0]):
        out[j] -= (a * first[j] + b * second[j]) + (c * third[j] + d * fourth[j])


@kernel(apart=True, inner=True)
def subtract(out: F8, row: RO_F8, a: float) -> None:
    """out -= a row."""
    for j in range(out.shape[0]):
        out[j] -= a * row[j]


@kernel
def dot(a: RO_F8, b: RO_F8) -> float:
    """a.b in eight sums, because each addition waits for the previous one."""
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    n = a.shape[0]
    whole = n - n % 8
    for j in range(0, whole, 8):
        s0 += a[j] * b[j]
        s1 += a[j + 1] * b[j + 1]
        s2 += a[j + 2] * b[j + 2]
        s3 += a[j + 3] * b[j + 3]
        s4 += a[j + 4] * b[j + 4]
        s5 += a[j + 5] * b[j + 5]
        s6 += a[j + 6] * b[j + 6]
        s7 += a[j + 7] * b[j + 7]
    for j in range(whole, n):
        s0 += a[j] * b[j]
    return ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))


@kernel
def factor(a: F8_2D) -> bool:
    """Cholesky: a symmetric matrix becomes U with U'U = A, in place; False for a pivot <= 0.

    a (n, n): its lower half is neither read nor written. Cost O(n^3 / 3).
    """
    n = a.shape[0]
    for k0 in range(0, n, _BLOCK):
        k1 = min(k0 + _BLOCK, n)
        for k in range(k0, k1):
            if not a[k, k] > 0.0:
                return False
            root = math.sqrt(a[k, k])
            for j in range(k, n):
                a[k, j] /= root
            for i in range(k + 1, k1):
                subtract(a[i, i:], a[k, i:], a[k, i])
        for j0 in range(k1, n, _TILE):
            j1 = min(j0 + _TILE, n)
            for i in range(k1, j1):
                j = max(i, j0)
                k = k0
                while k + 4 <= k1:
                    subtract_four(
                        a[i, j:j1], a[k, j:j1], a[k + 1, j:j1], a[k + 2, j:j1], a[k + 3, j:j1],
                        a[k, i], a[k + 1, i], a[k + 2, i], a[k + 3, i],
                    )  # fmt: skip
                    k += 4
                while k < k1:
                    subtract(a[i, j:j1], a[k, j:j1], a[k, i])
                    k += 1
    return True


@kernel
def solve_factored(u: RO_F8_2D, b: F8_2D) -> None:
    """Each row of b becomes (U'U)^-1 b, in place.

    u (n, n)   of `factor`;  b (k, n)   k right-hand sides. Cost O(k n^2).
    """
    n, k = u.shape[0], b.shape[0]
    for i in range(n):
        for r in range(k):
            b[r, i] /= u[i, i]
            subtract(b[r, i + 1 :], u[i, i + 1 :], b[r, i])
    for i in range(n - 1, -1, -1):
        for r in range(k):
            b[r, i] = (b[r, i] - dot(u[i, i + 1 :], b[r, i + 1 :])) / u[i, i]


@kernel
def times(a: RO_F8_2D, x: RO_F8, out: F8) -> None:
    """out = a x."""
    for i in range(a.shape[0]):
        out[i] = dot(a[i], x)
