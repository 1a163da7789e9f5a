"""ASDCA: accelerated SDCA, in stages with momentum, for smooth losses.

Shalev-Shwartz, Zhang, "Accelerated proximal stochastic dual coordinate ascent for regularized loss
minimization" (2014). kappa = R^2 / (gamma n) - rho, eta = sqrt(mu / (mu + kappa)) with mu = rho /
2, and z = w_s + beta (w_s - w_{s-1}), beta = (1 - eta) / (1 + eta): extrapolated from w, not from
the previous z as in a published program. A negative kappa is replaced by 0, and this is SDCA.
"""

import math

from dualstream.solvers.jit import Floats
from dualstream.solvers.offline.method import Method
from dualstream.solvers.offline.proximal_point import SMOOTH_LOSSES, Stages


class Accelerated(Stages):
    """A run; see method.Run."""

    def choose_kappa(self, least: float) -> float:
        rho = self._problem.rho
        kappa = max(0.0, least - rho)
        eta = math.sqrt(0.5 * rho / (0.5 * rho + kappa))
        self._beta = (1.0 - eta) / (1.0 + eta)
        return kappa

    def next_centre(self, w: Floats, last: Floats) -> Floats:
        return w + self._beta * (w - last)


METHOD = Method(begin=Accelerated, losses=SMOOTH_LOSSES)
