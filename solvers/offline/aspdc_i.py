"""ASPDC-i: stages of ASPDC, for ill-conditioned problems with smooth losses.

Liang, Cai, Wu, Shang, Cheng, Li, "ASPDC: accelerated SPDC regularized empirical risk minimization
for ill-conditioned problems in large-scale machine learning" (2022), Algorithm 3, and with
`stages="certified"` Algorithm 2, where a stage ends when its own gap is small enough. kappa = 4 R^2
/ (n gamma) - rho (printed for R = 1), and z = w_s. A negative kappa is replaced by 0, and this is
ASPDC. The paper's experiments used `stage_epochs=2, visits="random"`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dualstream.solvers.jit import Floats
from dualstream.solvers.offline.method import Method, Start
from dualstream.solvers.offline.options import CERTIFIED
from dualstream.solvers.offline.problem import Problem
from dualstream.solvers.offline.proximal_point import SMOOTH_LOSSES, Stages


class Staged(Stages):
    """A run; see method.Run."""

    keeps_curvature = False

    def __init__(
        self, problem: Problem, start: Start, options: Mapping[str, Any], rng: np.random.Generator
    ) -> None:
        super().__init__(problem, start, options, rng)
        self._is_certified = options["stages"] == CERTIFIED
        if self._is_certified:
            rho, kappa = problem.rho, self.kappa
            self._eta = rho / (rho + 2.0 * kappa)
            # As printed, from the initial gap.
            self._xi = (1.0 + 1.0 / self._eta) * self.bounds().gap

    def choose_kappa(self, least: float) -> float:
        return max(0.0, 4.0 * least - self._problem.rho)

    def next_centre(self, w: Floats, last: Floats) -> Floats:
        return w.copy()

    def stage_is_over(self) -> bool:
        if not self._is_certified:
            return super().stage_is_over()
        eta = self._eta
        # The weights are those of the stage's dual variables, so its gap is the loss part alone.
        if self._problem.loss_gap(self.weights, self.duals) > eta * self._xi / (2 + 2 / eta):
            return False
        self._xi *= 1.0 - 0.5 * eta
        return True


METHOD = Method(begin=Staged, losses=SMOOTH_LOSSES)
