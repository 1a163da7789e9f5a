"""Reference implementation of the portfolio, member by member, each with its own scaling and
weights."""

import copy
import math

from tests.solvers.staging import BalancedReference, NormReference

BIAS = "bias"
LINEAR = ("eight", "twelve", "papers")
"""Presets whose members all have a reference here."""


def sigmoid(x):
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


def clip(x, lo, hi):
    return min(max(x, lo), hi)


def dual_step(m, s, y, loss):
    """argmin over tau of Q*(-tau) + tau m + s tau^2 / 2, by bisection if there is no formula."""
    if loss == "hinge":
        return y * clip((1 - y * m) / s, 0.0, 1.0)
    if isinstance(loss, dict):
        return y * clip((1 - y * m) / (s + loss["gamma"]), 0.0, 1.0)
    lo, hi = -s - abs(m) - 1.0, s + abs(m) + 1.0
    for _ in range(200):
        u = 0.5 * (lo + hi)
        lo, hi = (u, hi) if u + y * m + s * sigmoid(u) < 0 else (lo, u)
    return y * sigmoid(0.5 * (lo + hi))


def slope(m, y, loss):
    if isinstance(loss, dict):
        return -y * clip((1 - y * m) / loss["gamma"], 0.0, 1.0)
    return -y * sigmoid(-y * m)


class Input:
    """The row as one member sees it."""

    def __init__(self, scaling, norm):
        self.scaling = None
        if scaling != "none":
            self.scaling = BalancedReference(scaling["power"], scaling["moments"])
        self.norm = None if norm == "none" else NormReference(norm)

    def scale(self, row):
        row = self.scaling.scale(row) if self.scaling else dict(row)
        return (self.norm.scale(row) if self.norm else row) | {BIAS: 1.0}


class MemberReference:
    """One member of a kind that exists only in portfolios."""

    def __init__(self, spec):
        self.spec, self.kind = spec, spec["kind"]
        self.input = Input(spec["scaling"], spec["norm"])
        self.w, self.second, self.n = {}, {}, 0

    def score(self, h):
        z = sum(x * self.w.get(j, 0.0) for j, x in h.items())
        if self.spec.get("schedule") == "inverse_sqrt":
            z /= self.spec["strength"] * math.sqrt(self.n + 1)
        return z

    def peek(self, row):
        return self.score(copy.deepcopy(self.input).scale(row))

    def learn(self, row, y, c):
        h = self.input.scale(row)
        m = self.score(h)
        self.n += 1
        loss = self.spec["loss"]
        if self.kind in ("dual_ascent", "spg_fixed_total"):
            strength = self.spec["strength"]
            rising = self.spec.get("schedule") == "inverse_sqrt"
            if rising or self.kind == "spg_fixed_total":
                strength *= math.sqrt(self.n)
            tau = dual_step(m, c * sum(x * x for x in h.values()) / strength, y, loss)
            direction = {j: x if rising else x / strength for j, x in h.items()}
        elif self.kind == "adagrad":
            g = c * slope(m, y, loss)
            start = 1e-6 if loss == "logistic" else 1e-2
            for j, x in h.items():
                self.second[j] = self.second.get(j, start) + g * g * x * x
            eta = self.spec["eta"]
            direction = {j: eta * x / math.sqrt(self.second[j]) for j, x in h.items()}
            tau = dual_step(m, c * sum(x * direction[j] for j, x in h.items()), y, loss)
        else:
            p = sigmoid(m)
            for j, x in h.items():
                kept = self.spec["gamma"] * self.second.get(j, 0.0)
                self.second[j] = kept + c * p * (1 - p) * x * x
            direction = {j: x / (0.1 + self.second[j]) for j, x in h.items()}
            tau = dual_step(m, c * sum(x * direction[j] for j, x in h.items()), y, loss)
        for j, d in direction.items():
            self.w[j] = self.w.get(j, 0.0) + c * tau * d
        return m


class PortfolioReference:
    """Members and the weighting rule; `learn` returns p, and q of each member."""

    def __init__(self, specs, eta=0.5, share=1e-3):
        self.members = [None if one["kind"] == "prior" else MemberReference(one) for one in specs]
        k = len(specs)
        self.v = [1.0 / k] * k
        self.a, self.b = [1.0] * k, [0.0] * k
        self.big_a, self.big_b = [10.0] * k, [10.0] * k
        self.positive = self.negative = 0.0
        self.eta, self.share = eta, share

    def prior(self):
        return math.log((self.positive + 0.5) / (self.negative + 0.5))

    def mix(self, scores):
        scores = [clip(m, -40.0, 40.0) for m in scores]
        ps = [
            sigmoid(clip(a * m + b, -12.0, 12.0))
            for a, b, m in zip(self.a, self.b, scores, strict=True)
        ]
        p = sum(v * p for v, p in zip(self.v, ps, strict=True))
        return scores, ps, 0.5 if abs(p - 0.5) < 1e-12 else p

    def predict(self, row):
        return self.mix([self.prior() if m is None else m.peek(row) for m in self.members])[2]

    def learn(self, row, y, c=1.0):
        if c == 0.0:
            return self.predict(row), None
        raw = [self.prior() if m is None else m.learn(row, y, c) for m in self.members]
        scores, ps, p = self.mix(raw)
        is_positive = 1.0 if y > 0 else 0.0
        q = [max(one if y > 0 else 1.0 - one, 1e-4) for one in ps]
        self.v = [v * one ** min(self.eta * c, 1.0) for v, one in zip(self.v, q, strict=True)]
        total, k = sum(self.v), len(self.v)
        self.v = [(1.0 - self.share) * v / total + self.share / k for v in self.v]
        for i, (m, one) in enumerate(zip(scores, ps, strict=True)):
            g, h = c * (one - is_positive), c * (one * (1.0 - one) + 1e-3)
            self.big_a[i] += h * m * m
            self.big_b[i] += h
            f = g / (1.0 + h * (m * m / self.big_a[i] + 1.0 / self.big_b[i]))
            self.a[i] = max(1e-3, self.a[i] - f * m / self.big_a[i])
            self.b[i] -= f / self.big_b[i]
        if y > 0:
            self.positive += c
        else:
            self.negative += c
        return p, q
