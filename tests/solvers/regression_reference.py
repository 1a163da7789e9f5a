"""Reference implementation of the regression portfolio: one row at a time, rows as dicts of
columns.

A prediction is a mean of K members' predictions, weighted by the exponentials of their absolute
errors. Errors are in units of S, the running root mean square of the mixture's own errors,
so y -> a y + b gives p -> a p + b from the second row on.
"""

import copy
import math
from dataclasses import dataclass

from tests.solvers.staging import BalancedReference, NormReference

ETA = 1 / 8
SHARE = 0.001
REACH = 50.0  # targets are clipped to within this many S of the prediction
WORST = 64.0  # the largest loss, in A / 2 with A the running mean absolute error
RATE = 0.01  # of the running mean square, from row 101 on
BEYOND = 0.05  # predictions may exceed the range of targets by this share of the range

INTERCEPT = -1


@dataclass(frozen=True)
class Member:
    base: str  # the base that the member corrects: the mean of the targets, or the last one
    kind: str  # prior (the base itself), dual_ascent, spg or newton
    norm: str = "none"
    strength: float = 1.0  # for newton the initial value of A_j
    huber: bool = False
    gamma: float = 1.0


MEMBERS = (
    Member("mean", "prior"),
    Member("last", "prior"),
    Member("mean", "dual_ascent", "none", 0.1),
    Member("mean", "dual_ascent", "running", 3.0),
    Member("mean", "spg", "row", 0.3, huber=True),
    Member("last", "dual_ascent", "none", 1.0, huber=True),
    Member("last", "dual_ascent", "none", 100.0, huber=True),
    Member("mean", "newton", "none", huber=True),
    Member("mean", "newton", "none", huber=True, gamma=0.99),
    Member("mean", "newton", "row", huber=True, gamma=0.999),
)


class Learner:
    """The weights of one member."""

    def __init__(self, member):
        self.member = member
        self.w, self.seen = {}, {}

    def score(self, h):
        return sum(self.w.get(j, 0.0) * x for j, x in h.items())

    def step(self, h, f, r, c, n, scale):
        """Learn r from the score f; `scale` is S, 0 before it is known."""
        member = self.member
        if member.kind == "newton":
            for j, x in h.items():
                self.seen[j] = member.gamma * self.seen.get(j, 0.0) + c * x * x
            a = {j: 1.0 / (member.strength + self.seen[j]) for j in h}
        else:
            strength = member.strength * (math.sqrt(n) if member.kind == "spg" else 1.0)
            a = dict.fromkeys(h, 1.0 / strength)
        s = c * sum(a[j] * x * x for j, x in h.items())
        tau = (r - f) / (1.0 + s)
        if member.huber and scale > 0.0:
            tau = min(max(tau, -scale), scale)
        for j, x in h.items():
            self.w[j] = self.w.get(j, 0.0) + c * a[j] * tau * x


class RegressionPortfolio:
    """learn(row, y) returns (p, z): the prediction and the members' predictions before the step."""

    def __init__(self, members=MEMBERS):
        self.members = members
        self.balanced = BalancedReference(reach=8.0)
        self.norms = {kind: NormReference(kind) for kind in ("row", "running")}
        self.learners = [Learner(member) for member in members]
        self.v = [1.0 / len(members)] * len(members)
        self.n, self.total, self.square, self.mean_error = 0, 0.0, 0.0, 0.0
        self.mean = self.last = self.low = self.high = 0.0
        self.regret_terms = (
            None  # for the last row: the loss of the mixture, and those of the members
        )

    def learn(self, row, y, c=1.0):
        if c == 0.0:
            return copy.deepcopy(self).learn(row, y)
        inputs = self.inputs(row)
        if self.n == 0:
            self.mean = self.last = self.low = self.high = y
            self.n, self.total = 1, c
            return 0.0, [0.0] * len(self.members)

        scale = math.sqrt(self.square)
        bases = {"mean": self.mean, "last": self.last}
        scores = [
            0.0 if member.kind == "prior" else learner.score(inputs[member.norm])
            for member, learner in zip(self.members, self.learners, strict=True)
        ]
        beyond = BEYOND * (self.high - self.low)
        z = [
            min(max(bases[member.base] + f, self.low - beyond), self.high + beyond)
            if math.isfinite(f)
            else self.mean
            for member, f in zip(self.members, scores, strict=True)
        ]
        p = self.mean + sum(v * (x - self.mean) for v, x in zip(self.v, z, strict=True))
        if scale > 0.0:
            y = min(max(y, p - REACH * scale), p + REACH * scale)
        self.regret_terms = None
        if scale > 0.0:
            self.weigh(z, y, c)

        for k, (member, f) in enumerate(zip(self.members, scores, strict=True)):
            if not math.isfinite(f):
                self.learners[k] = Learner(member)
            elif member.kind != "prior":
                r = y - bases[member.base]
                self.learners[k].step(inputs[member.norm], f, r, c, self.n + 1, scale)

        self.square += max(1.0 / self.n, RATE) * ((y - p) ** 2 - self.square)
        self.mean_error += max(1.0 / self.n, RATE) * (abs(y - p) - self.mean_error)
        self.total += c
        self.mean += c / self.total * (y - self.mean)
        self.last = y
        self.low, self.high = min(self.low, y), max(self.high, y)
        self.n += 1
        return p, z

    def inputs(self, row):
        """The row under each norm, with the intercept."""
        h = self.balanced.scale(row)
        result = {"none": h} | {kind: norm.scale(h) for kind, norm in self.norms.items()}
        return {kind: values | {INTERCEPT: 1.0} for kind, values in result.items()}

    def weigh(self, z, y, c):
        losses = [min(abs(y - x) / (0.5 * self.mean_error), WORST) for x in z]
        least = min(losses)
        v = [
            v * math.exp(-ETA * c * (loss - least)) for v, loss in zip(self.v, losses, strict=True)
        ]
        total = math.fsum(v)
        self.regret_terms = c * least - math.log(total) / ETA, [c * loss for loss in losses]
        self.v = [(1.0 - SHARE) * x / total + SHARE / len(z) for x in v]


def regret_bound(rows, members):
    """Bound on the sum of the mixture's losses minus that of any member."""
    return (math.log(members) - rows * math.log(1.0 - SHARE)) / ETA
