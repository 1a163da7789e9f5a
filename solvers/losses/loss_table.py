"""Losses: the nine losses as six numbers each; loss_kernels.py defines the numbers.

| name                | Q(z; y)                                               | parameter   |
|---------------------|-------------------------------------------------------|-------------|
| hinge               | max(0, 1 - y z)                                       |             |
| squared_hinge       | max(0, 1 - y z)^2, without a half, as LIBLINEAR       |             |
| smooth_hinge        | 0, 1 - y z - g/2 or (1 - y z)^2 / (2 g)               | gamma = g   |
| logistic            | log(1 + exp(-y z))                                    |             |
| squared             | (y - z)^2 / 2                                         |             |
| absolute            | abs(y - z)                                            |             |
| quantile            | t max(0, y - z) + (1 - t) max(0, z - y)               | tau = t     |
| epsilon_insensitive | max(0, abs(y - z) - e)                                | epsilon = e |
| huber               | (y - z)^2 / 2, beyond abs(y - z) = d:  d abs(y - z) - d^2 / 2 | delta = d |

`absolute` is twice `quantile` at 1/2: not the same problem at equal rho.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from dualstream.solvers.jit import Floats
from dualstream.solvers.losses import loss_kernels as _steps
from dualstream.solvers.spec_cache import SharedDerived


@dataclass(frozen=True, slots=True)
class Parameter:
    """The parameter of a loss: its default and its range."""

    name: str
    default: float
    least: float
    most: float
    allowed: str


@dataclass(frozen=True, slots=True)
class Loss(SharedDerived):
    """One loss with a value for its parameter."""

    name: str
    margin: bool = False
    """Whether it is a function of y z with y = -1 or 1, and so cannot be used for regression."""
    logistic: bool = False
    eps: float = 0.0
    gamma: float = 0.0
    lo: float = 0.0
    hi: float = 1.0

    @property
    def numbers(self) -> Floats:
        """(6,): logistic, margin, eps, gamma, lo, hi, as kernels take them."""
        return np.array([self.logistic, self.margin, self.eps, self.gamma, self.lo, self.hi])

    def value(self, z: float, y: float) -> float:
        """Q(z; y)."""
        return _steps.loss_value(z, y, tuple(self.numbers))

    def slope(self, z: float, y: float) -> float:
        """An element of the subdifferential of Q( . ; y) at z."""
        return _steps.loss_slope(z, y, tuple(self.numbers))

    def conjugate(self, tau: float, y: float) -> float:
        """Q*(-tau; y): the supremum over z of -tau z - Q(z; y); infinity outside its domain."""
        b = y * tau if self.margin else tau
        if not self.lo <= b <= self.hi:
            return math.inf
        return _steps.loss_conjugate(tau, y, tuple(self.numbers))

    def dual_step(self, m: float, s: float, y: float) -> float:
        """argmin over tau of  Q*(-tau; y) + tau m + s tau^2 / 2,  for s >= 0."""
        tau, _ = _steps.dual_step(m, s, y, tuple(self.numbers))
        return float(tau)


_SCALE = (1e-12, 1e12, "a number in [1e-12, 1e12]")

PARAMETERS: Mapping[str, Parameter] = {
    "smooth_hinge": Parameter("gamma", 1.0, *_SCALE),
    "quantile": Parameter("tau", 0.5, 1e-12, 1 - 1e-12, "a number in [1e-12, 1 - 1e-12]"),
    "epsilon_insensitive": Parameter("epsilon", 0.1, 0.0, 1e12, "a number in [0, 1e12]"),
    "huber": Parameter("delta", 1.0, *_SCALE),
}
"""The parameter of each loss that has one."""

_MAKERS: Mapping[str, Callable[[float], Loss]] = {
    "hinge": lambda _: Loss("hinge", margin=True),
    "squared_hinge": lambda _: Loss("squared_hinge", margin=True, gamma=0.5, hi=math.inf),
    "smooth_hinge": lambda g: Loss("smooth_hinge", margin=True, gamma=g),
    "logistic": lambda _: Loss("logistic", margin=True, logistic=True),
    "squared": lambda _: Loss("squared", gamma=1.0, lo=-math.inf, hi=math.inf),
    "absolute": lambda _: Loss("absolute", lo=-1.0),
    "quantile": lambda t: Loss("quantile", lo=t - 1.0, hi=t),
    "epsilon_insensitive": lambda e: Loss("epsilon_insensitive", eps=e, lo=-1.0),
    "huber": lambda d: Loss("huber", gamma=1.0, lo=-d, hi=d),
}

LOSSES = tuple(_MAKERS)
"""Names of all losses."""

MARGIN_LOSSES = tuple(name for name in LOSSES if _MAKERS[name](1.0).margin)
"""Losses that need labels -1 and 1."""

NONSMOOTH_LOSSES = ("hinge", "absolute", "quantile", "epsilon_insensitive")
"""Losses for which averaged weights are served by default."""


def make_loss(name: str, parameter: float | None = None) -> Loss:
    """The loss of this name; `parameter` is that of PARAMETERS, None for its default."""
    if parameter is None:
        parameter = PARAMETERS[name].default if name in PARAMETERS else 0.0
    return _MAKERS[name](parameter)
