"""Reference of dual ascent with regularizers other than L2."""

import math
from dataclasses import dataclass

import numpy as np

from tests.solvers import reference

ELASTIC, ENTROPY = {"kind": "elastic_net", "delta": 0.3}, "entropy"
REGULARIZERS = {"elastic_net": ELASTIC, "entropy": ENTROPY}


def soft(x, eps):
    return np.sign(x) * np.maximum(np.abs(x) - eps, 0.0)


def primal_map(regularizer, dashed):
    """grad R*(w')."""
    if regularizer == ENTROPY:
        shares = np.exp(dashed - dashed.max())
        return shares / shares.sum()
    return soft(dashed, regularizer["delta"])


def conjugate(regularizer, dashed):
    """R*(w')."""
    if regularizer == ENTROPY:
        return dashed.max() + math.log(np.exp(dashed - dashed.max()).sum())
    return 0.5 * np.sum(soft(dashed, regularizer["delta"]) ** 2)


def value(regularizer, w):
    """R(w)."""
    if regularizer == ENTROPY:
        return sum(x * math.log(x) for x in w if x > 0.0)
    return 0.5 * w @ w + regularizer["delta"] * np.abs(w).sum()


def bisected(loss, regularizer, f, a, h, y):
    """argmin over tau of Q*(-tau; y) + R*(f + a tau h) / a.

    tau is below it exactly if one proximal step on Q*, at the slope of the other part, goes up.
    """
    lo, hi = reference.domain(loss, y, reference.LOSSES[loss])
    lo, hi = max(lo, -1e3), min(hi, 1e3)
    for _ in range(70 if loss != "logistic" else 50):
        tau = lo + (hi - lo) / 2
        z = h @ primal_map(regularizer, f + a * tau * h)
        if loss == "logistic":
            up = z + y * math.log(y * tau / (1 - y * tau)) < 0
        else:
            up = reference.step(loss, z - tau, 1.0, y, reference.LOSSES[loss]) > tau
        lo, hi = (tau, hi) if up else (lo, tau)
    return hi


@dataclass
class General(reference.Reference):
    """The same with another regularizer."""

    regularizer: object = ENTROPY

    def served(self):
        if not self.iterates:
            return primal_map(self.regularizer, np.zeros(7))
        return super().served()

    def step_of(self, at):
        h, y, _, _ = self.rows[at]
        self.rows[at][3] = 0.0
        a, f = self.deltas()[at] / self.room(), self.numerator() / self.room()
        self.rows[at][3] = bisected(self.loss, self.regularizer, f, a, h, y)
        return primal_map(self.regularizer, self.numerator() / self.room())

    def learn(self, h, y, c=1.0):
        self.scores.append(float(h @ self.served()))
        if c > 0.0:
            self.rows.append([h, y, c, 0.0])
            self.iterates.append(self.step_of(-1))

    def visit(self, u):
        count = len(self.rows)
        if self.window[0] == "sliding":
            count = min(count, self.window[1])
        self.iterates[-1] = self.step_of(len(self.rows) - 1 - int(u * count))

    def certificate(self):
        deltas, w = self.deltas(), self.served()
        total = deltas.sum()
        dashed, rho = self.numerator() / self.room(), self.room() / total
        primal, dual = rho * value(self.regularizer, w), -rho * conjugate(self.regularizer, dashed)
        for delta, (h, y, _, tau) in zip(deltas, self.rows, strict=True):
            primal += delta * reference.value(self.loss, h @ w, y, self.k) / total
            dual -= delta * reference.conjugate(self.loss, tau, y, self.k) / total
        return primal, dual, primal - dual
