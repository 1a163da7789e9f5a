"""Confidence sequence for the difference of two members, valid at every moment.

X_t is the difference of two bounded losses in row t. The estimate is of the mean of the conditional
expectations of the X_i given the past, which may drift. Howard, Ramdas, McAuliffe and Sekhon,
"Time-uniform, nonparametric, nonasymptotic confidence sequences" (Annals of Statistics 49(2), 2021,
arXiv:1810.08240), Theorem 4: with V_t = sum (X_i - P_i)^2 for predictable P_i, and u a
sub-exponential uniform boundary of scale c that is crossed with probability alpha / 2,

    |sum X_i - sum E(X_i | past)| < u(V_t)  at all t simultaneously, with probability >= 1 - alpha.

Here P_i = 0, so V_t is a sum of squares, and c is the largest |X|, because the proof needs X_i -
P_i >= -c and the same for -X. The boundary is their stitched one (Theorem 1 and eq. (10)), made for
sub-gamma processes and therefore valid for sub-exponential ones: for v at least m,

    u(v) = sqrt(k1^2 v l + k2^2 c^2 l^2) + k2 c l,
    l = s ln ln(eta v / m) + ln(2 zeta(s) / (alpha ln(eta)^s)),
    k1 = (eta^(1/4) + eta^(-1/4)) / sqrt 2,  k2 = (sqrt eta + 1) / 2.
"""

import math

from dualstream.solvers.errors import MemberError
from dualstream.solvers.protocols.member_learner import Comparison

_ETA, _S, _MIN_VARIANCE = 2.0, 1.4, 1.0
_ZETA_S = 3.105547277977581
"""The Riemann zeta function at 1.4."""


def stitched_boundary(v: float, alpha: float, c: float, least: float = _MIN_VARIANCE) -> float:
    """u(v), crossed with probability at most `alpha`; eta = 2, s = 1.4, m = `least`."""
    v = max(v, least)
    length = _S * math.log(math.log(_ETA * v / least))
    length += math.log(_ZETA_S / (alpha * math.log(_ETA) ** _S))
    k1 = (_ETA**0.25 + _ETA**-0.25) / math.sqrt(2.0)
    linear = 0.5 * (math.sqrt(_ETA) + 1.0) * c * length
    return math.sqrt(k1 * k1 * v * length + linear * linear) + linear


def compare(
    a: str, b: str, rows: int, total: float, squares: float, most: float, level: float
) -> Comparison:
    """Mean of `rows` differences a - b, each within +-`most`, and its confidence interval.

    total, squares  sums of the differences and of their squares
    level           in (0, 1); raises MemberError otherwise
    """
    if not 0.0 < level < 1.0:
        raise MemberError(f"level must be in (0, 1), got {level!r}")
    if rows == 0:
        return Comparison(a, b, 0, 0.0, -most, most, level)
    mean = total / rows
    radius = stitched_boundary(squares, 0.5 * (1.0 - level), most) / rows
    return Comparison(a, b, rows, mean, max(mean - radius, -most), min(mean + radius, most), level)
