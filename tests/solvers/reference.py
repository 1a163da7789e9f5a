"""Reference implementation of O-DCA and its certificate, from the definitions.

Slow and dense, in NumPy, sharing no code with `solvers`. It keeps every row and recomputes every
sum from all rows.
"""

import math
from dataclasses import dataclass, field

import numpy as np

LOSSES = {
    "hinge": None,
    "squared_hinge": None,
    "smooth_hinge": 0.7,
    "logistic": None,
    "squared": None,
    "absolute": None,
    "quantile": 0.3,
    "epsilon_insensitive": 0.1,
    "huber": 0.5,
}
PARAMETER = {
    "smooth_hinge": "gamma",
    "quantile": "tau",
    "epsilon_insensitive": "epsilon",
    "huber": "delta",
}
MARGIN = ("hinge", "squared_hinge", "smooth_hinge", "logistic")


def loss_spec(name):
    if name in PARAMETER:
        return {"kind": name, PARAMETER[name]: LOSSES[name]}
    return name


def value(name, z, y, k):
    """Q(z; y), as textbooks write it."""
    if name == "hinge":
        return max(0.0, 1 - y * z)
    if name == "squared_hinge":
        return max(0.0, 1 - y * z) ** 2
    if name == "smooth_hinge":
        if y * z >= 1:
            return 0.0
        return 1 - y * z - k / 2 if y * z <= 1 - k else (1 - y * z) ** 2 / (2 * k)
    if name == "logistic":
        return float(np.logaddexp(0.0, -y * z))
    if name == "squared":
        return (y - z) ** 2 / 2
    if name == "absolute":
        return abs(y - z)
    if name == "quantile":
        return k * max(0.0, y - z) + (1 - k) * max(0.0, z - y)
    if name == "epsilon_insensitive":
        return max(0.0, abs(y - z) - k)
    return (y - z) ** 2 / 2 if abs(y - z) <= k else k * abs(y - z) - k * k / 2


def domain(name, y, k):
    """Where Q*(-tau; y) is finite."""
    if name in ("hinge", "smooth_hinge", "logistic"):
        return (0.0, 1.0) if y > 0 else (-1.0, 0.0)
    if name == "squared_hinge":
        return (0.0, math.inf) if y > 0 else (-math.inf, 0.0)
    ends = {"squared": (-math.inf, math.inf), "quantile": (k and k - 1, k), "huber": (k and -k, k)}
    return ends.get(name, (-1.0, 1.0))


def conjugate(name, tau, y, k):
    """Q*(-tau; y) inside the domain."""
    b = y * tau
    if name == "hinge":
        return -b
    if name == "squared_hinge":
        return -b + b * b / 4
    if name == "smooth_hinge":
        return -b + k * b * b / 2
    if name == "logistic":
        return sum(x * math.log(x) for x in (b, 1 - b) if x > 0)
    if name in ("squared", "huber"):
        return tau * tau / 2 - y * tau
    if name == "epsilon_insensitive":
        return -y * tau + k * abs(tau)
    return -y * tau


def step(name, m, s, y, k):
    """argmin over tau of Q*(-tau; y) + tau m + s tau^2 / 2, for s > 0."""
    if name == "hinge":
        return y * np.clip((1 - y * m) / s, 0, 1)
    if name == "squared_hinge":
        return y * max(0.0, (1 - y * m) / (s + 0.5))
    if name == "smooth_hinge":
        return y * np.clip((1 - y * m) / (s + k), 0, 1)
    if name == "logistic":
        return y * _logistic(y * m, s)
    if name == "squared":
        return (y - m) / (1 + s)
    if name == "absolute":
        return np.clip((y - m) / s, -1, 1)
    if name == "quantile":
        return np.clip((y - m) / s, k - 1, k)
    if name == "epsilon_insensitive":
        r = y - m
        return np.clip(math.copysign(max(abs(r) - k, 0.0), r) / s, -1, 1)
    return np.clip((y - m) / (1 + s), -k, k)


def _logistic(c, s):
    """sigmoid(u) where u + c + s sigmoid(u) = 0, by bisection alone."""
    lo, hi = -c - s, -c
    for _ in range(1200):
        u = lo + (hi - lo) / 2
        sigmoid = 1 / (1 + math.exp(-u)) if u > -700 else math.exp(u)
        lo, hi = (lo, u) if u + c + s * sigmoid > 0 else (u, hi)
    return sigmoid


@dataclass
class Reference:
    """The learner: window is ("infinite",), ("exponential", beta) or ("sliding", length)."""

    loss: str
    window: tuple
    rho: float
    kappa: float = 0.0
    strength: float = 0.0
    rows: list = field(default_factory=list)
    iterates: list = field(default_factory=list)
    scores: list = field(default_factory=list)

    @property
    def k(self):
        return LOSSES[self.loss]

    def deltas(self):
        n, c = len(self.rows), np.array([row[2] for row in self.rows])
        if self.window[0] == "exponential":
            return c * self.window[1] ** np.arange(n - 1, -1, -1.0)
        if self.window[0] == "sliding":
            return c * (np.arange(n) >= n - self.window[1])
        return c

    def numerator(self):
        parts = zip(self.deltas(), self.rows, strict=True)
        return sum(delta * row[3] * row[0] for delta, row in parts)

    def served(self):
        if not self.iterates:
            return 0.0
        if self.kappa == 0.0:
            return self.iterates[-1]
        decay = self.kappa ** np.arange(len(self.iterates) - 1, -1, -1.0)
        return decay @ np.array(self.iterates) / decay.sum()

    def room(self):
        """rho Delta."""
        return self.strength or self.rho * self.deltas().sum()

    def learn(self, h, y, c=1.0):
        self.scores.append(float(np.sum(h * self.served())))
        if c == 0.0:
            return
        self.rows.append([h, y, c, 0.0])
        room = self.room()
        m, s = h @ self.numerator() / room, c * (h @ h) / room
        self.rows[-1][3] = float(step(self.loss, m, s, y, self.k))
        self.iterates.append(self.numerator() / room)

    def visit(self, u):
        """The same step for a retained row, chosen by the visit u as in replay.py."""
        count = len(self.rows)
        if self.window[0] == "sliding":
            count = min(count, self.window[1])
        at = len(self.rows) - 1 - int(u * count)
        h, y, _, _ = self.rows[at]
        a = self.deltas()[at] / self.room()
        if a > 0.0:
            self.rows[at][3] = 0.0
            m = h @ self.numerator() / self.room()
            self.rows[at][3] = float(step(self.loss, m, a * (h @ h), y, self.k))
            self.iterates[-1] = self.numerator() / self.room()

    def certificate(self):
        """primal, dual and gap of the served weights, from all rows."""
        deltas, w = self.deltas(), self.served()
        total = deltas.sum()
        dashed, rho = self.numerator() / self.room(), self.room() / total
        parts = list(zip(deltas, self.rows, strict=True))
        primal = sum(d * value(self.loss, h @ w, y, self.k) for d, (h, y, _, _) in parts) / total
        dual = -sum(d * conjugate(self.loss, t, y, self.k) for d, (_, y, _, t) in parts) / total
        primal += rho * w @ w / 2
        dual -= rho * dashed @ dashed / 2
        return primal, dual, primal - dual
