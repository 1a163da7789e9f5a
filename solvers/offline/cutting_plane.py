"""OCAS and MCPA: cutting planes for the hinge loss.

Lee, "Optimization methods for regularized convex formulations in machine learning" (thesis),
Algorithms 7 and 8, after Franc and Sonnenburg (2008). Each iteration solves the relaxed problem,
which has the cuts so far in place of the loss, searches the line from the best weights towards its
solution, and cuts between the two. An epoch is an iteration: two passes over the rows.

MCPA takes P cuts in an iteration, one for each of `parts` subsets of the rows, and leaves out cuts
that were idle for `rest` iterations. `lazy` is the printed safeguard, which cuts at the best
weights unless the last search failed. It needs more iterations than the safeguard of OCAS, which is
the default; docs/internals/papers.md has both.

Differences from the printed algorithms: a free intercept has bounds (relaxed_problem.py). Cuts that
do not exclude the relaxed solution are dropped; if all are, the next ones are taken nearer to the
relaxed solution. The gap uses the best lower bound of all iterations, which remains valid when cuts
are dropped.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dualstream.solvers.jit import Floats
from dualstream.solvers.offline.cut_kernels import cuts_at, line_search
from dualstream.solvers.offline.dense_algebra import dot
from dualstream.solvers.offline.method import Method, Start
from dualstream.solvers.offline.problem import Bounds, Problem
from dualstream.solvers.offline.relaxed_problem import Cuts, Relaxed

_RECOMPUTE_EVERY = 50
"""Iterations after which the scores of the best weights are recomputed."""
_NEW = 1e-12
"""A cut is new if the relaxed solution violates it by this much."""
_IDLE_ALPHA = 1e-9
"""An alpha below this counts as 0 for the age of its cut."""
_STALLS = 3
"""Consecutive iterations without a new cut after which the run has stalled."""
_ZERO_GAP = 1e-12
"""A gap that counts as 0: with one class and a free intercept the least objective is 0."""


class CuttingPlanes:
    """A run; see method.Run."""

    def __init__(
        self, problem: Problem, start: Start, options: Mapping[str, Any], rng: np.random.Generator
    ) -> None:
        self._problem = problem
        self._parts = options["parts"]
        self._safeguard = options["safeguard"]
        self._is_lazy = options["lazy"]
        self._rest, self._recall = options["rest"], options["recall"]
        self._rho, self._labels = problem.rho, problem.labels
        self._costs = problem.batch.weights / problem.total
        self._is_free = problem.intercept == "free"
        # Only columns that occur, because a cut is dense.
        occurs = np.zeros(problem.batch.dim, bool)
        occurs[problem.batch.indices] = True
        self._columns = np.flatnonzero(occurs)
        self._indices = (np.cumsum(occurs) - 1).astype(np.int32)[problem.batch.indices]
        self._width = len(self._columns) + 1
        self._box = 0.0
        if self._is_free:
            longest = float(np.sqrt(max(problem.square_norms().max() - 1.0, 0.0)))
            self._box = 1.0 + float(np.sqrt(2.0 / self._rho)) * longest
        self._cuts = Cuts(self._width - 1 if self._is_free else self._width, self._parts)
        self._sets: list[Any] = []
        self._best = np.zeros(problem.width)
        self._lower = 0.0
        self._alpha: Floats | None = None
        self._first_duals = np.zeros(problem.n)
        if start.duals is not None:
            self._begin_with(problem.clipped(start.duals))
        if start.weights is not None:
            self._best = start.weights.copy()
        self._margins = self._labels * problem.scores(self._best)
        self.iterations, self.last_step = 0, 0.0
        self._primal = self._value()
        self._last_guard = 0.0
        self._stalls = 0
        n = problem.n
        self._scratch = np.empty(n), np.empty(n)
        self._active = np.empty(n, np.uint8)

    @property
    def weights(self) -> Floats:
        return self._best

    @property
    def duals(self) -> Floats:
        """Dual variables of the rows: y_i times the sum of the alpha whose cuts count row i."""
        if self._alpha is None:
            return self._first_duals
        total = np.zeros(self._problem.n)
        for alpha, (part, packed) in zip(self._alpha, self._sets, strict=False):
            if alpha > 0.0:
                flags = np.unpackbits(packed, count=self._problem.n)
                total[part :: self._parts] += alpha * flags[part :: self._parts]
        out: Floats = self._labels * np.minimum(total, 1.0)
        return out

    @property
    def promise(self) -> float:
        return self._primal - self._lower

    def bounds(self) -> Bounds:
        return Bounds(self._primal, self._lower, max(self._primal - self._lower, 0.0))

    def advance(self) -> float:
        self.iterations += 1
        relaxed = Relaxed(self._cuts, self._chosen(), self._rho, self._box, self._accuracy())
        self._age(relaxed)
        if relaxed.lower > self._lower:
            self._lower, self._alpha = relaxed.lower, relaxed.alpha
        towards = self._widened(relaxed)
        margins = self._labels * self._problem.scores(towards)
        self.last_step = self._step_towards(towards, margins)
        guard = self._safeguard
        if self._is_lazy and (self._last_guard > 0.0 or self.last_step > 0.0):
            guard = 0.0
        self._last_guard = guard
        # If no cut between the two is new: cut at the relaxed solution itself, as in Kelley's
        # method.
        is_new = self._cut((1.0 - guard) * self._margins + guard * margins, relaxed)
        is_new = is_new or self._cut(margins, relaxed)
        # The relaxed solution is optimal, up to the accuracy of its solver.
        self._stalls = 0 if is_new else self._stalls + 1
        return 1.0 if self._stalls < _STALLS else 0.0

    def _begin_with(self, duals: Floats) -> None:
        """Start at the weights of these dual variables, with their bound."""
        problem = self._problem
        dashed = problem.from_duals(duals)
        shares = self._costs * duals
        penalty = self._box * abs(float(np.sum(shares)))
        if self._is_free:
            dashed[-1] = 0.0
        lower = dot(shares, self._labels) - 0.5 * self._rho * dot(dashed, dashed) - penalty
        self._best = dashed
        if lower > 0.0:
            self._lower, self._first_duals = lower, duals

    def _step_towards(self, towards: Floats, margins: Floats) -> float:
        """Move the best weights along the line to `towards`; return the step length."""
        problem = self._problem
        move = towards - self._best
        if self._is_free:
            slope = self._rho * dot(self._best[:-1], move[:-1])
            curve = self._rho * dot(move[:-1], move[:-1])
        else:
            slope = self._rho * dot(self._best, move)
            curve = self._rho * dot(move, move)
        k = line_search(
            self._margins, margins - self._margins, self._costs, slope, curve, *self._scratch
        )
        if not k > 0.0:
            return 0.0
        before = self._best, self._margins, self._primal
        self._best = self._best + k * move
        if self.iterations % _RECOMPUTE_EVERY:
            self._margins = (1.0 - k) * self._margins + k * margins
        else:
            self._margins = self._labels * problem.scores(self._best)
        self._primal = self._value()
        if not self._primal < before[2]:
            self._best, self._margins, self._primal = before
            return 0.0
        return float(k)

    def _value(self) -> float:
        w = self._best[:-1] if self._is_free else self._best
        losses = np.maximum(0.0, 1.0 - self._margins)
        return dot(self._costs, losses) + 0.5 * self._rho * dot(w, w)

    def _cut(self, margins: Floats, relaxed: Relaxed) -> bool:
        """Add the cuts at these margins that the relaxed solution violates; whether there
        are any.
        """
        batch, parts = self._problem.batch, self._parts
        planes, offsets = np.empty((parts, self._width)), np.empty(parts)
        sizes = np.empty(parts, np.int64)
        cuts_at(
            batch.indptr, self._indices, batch.values, self._problem.bias, self._labels,
            self._costs, margins, parts, planes, offsets, sizes, self._active,
        )  # fmt: skip
        is_new = False
        packed = np.packbits(self._active)
        for part in range(parts):
            plane, slope = planes[part], 0.0
            if self._is_free:
                slope, plane = float(plane[-1]), plane[:-1]
            value = offsets[part] - dot(plane, relaxed.weights) - slope * relaxed.intercept
            if value > relaxed.levels[part] + _NEW:
                self._cuts.add(plane, float(offsets[part]), slope, part)
                self._sets.append((part, packed))
                is_new = True
        return is_new

    def _chosen(self) -> Any:
        """The cuts of the next relaxed problem: long idle ones are left out from time to time."""
        idle = self._cuts.idle
        if not self._rest or self.iterations % self._recall == 0:
            return np.arange(len(idle))
        return np.flatnonzero(idle < self._rest)

    def _age(self, relaxed: Relaxed) -> None:
        is_used = relaxed.alpha > _IDLE_ALPHA
        self._cuts.idle = np.where(is_used, 0, self._cuts.idle + 1)

    def _accuracy(self) -> float:
        """Tolerance of the relaxed problem, relative to the current gap."""
        share = (self._primal - self._lower) / max(abs(self._primal), 1e-300)
        return float(np.clip(1e-3 * share, 1e-13, 1e-6))

    def _widened(self, relaxed: Relaxed) -> Floats:
        out = np.zeros(self._problem.width)
        inner = relaxed.weights if self._is_free else relaxed.weights[:-1]
        out[self._columns] = inner
        out[-1] = relaxed.intercept if self._is_free else relaxed.weights[-1]
        return out


METHOD = Method(
    begin=CuttingPlanes, losses=("hinge",), intercepts={}, least_gap=_ZERO_GAP, is_seen_through=True
)
"""Of `ocas` and `mcpa`, whose defaults differ: see options.py."""
