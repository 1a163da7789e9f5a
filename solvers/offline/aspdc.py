"""ASPDC: dual steps without the term of |h_i|^2, for smooth losses and large rho.

Liang et al. (see aspdc_i.py), Algorithm 1: lambda_i <- -Q'(h_i.w). It is SDCA without that term,
whose cost is negligible. Its Lemma 2 requires rho >= 4 R^2 / (n gamma) (printed for R = 1). It
diverges below about a quarter of that, so a smaller rho is refused.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dualstream.solvers.errors import InvalidSpec
from dualstream.solvers.offline.dual_sweep import CURVATURE
from dualstream.solvers.offline.method import Method, Start
from dualstream.solvers.offline.problem import Problem
from dualstream.solvers.offline.proximal_point import SMOOTH_LOSSES, largest_share, modulus
from dualstream.solvers.offline.sdca import Ascent


class PrimalDual(Ascent):
    """A run; see method.Run."""

    def __init__(
        self, problem: Problem, start: Start, options: Mapping[str, Any], rng: np.random.Generator
    ) -> None:
        least = 4.0 * largest_share(problem, problem.square_norms()) / modulus(problem)
        if problem.rho < least * (1.0 - 1e-12):
            raise InvalidSpec(
                "/rho",
                problem.rho,
                f"at least 4 R^2 / (n gamma) = {least:.4g} of these rows for aspdc, as its steps "
                "need not converge below; sdca and aspdc_i have no such condition",
            )
        super().__init__(problem, start, options, rng)
        self._table[:, CURVATURE] = 0.0


METHOD = Method(begin=PrimalDual, losses=SMOOTH_LOSSES)
