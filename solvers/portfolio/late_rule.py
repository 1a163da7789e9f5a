"""LateRule: the second rule of a portfolio that has learned late labels; see late_kernels.py."""

import math
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.jit import Floats
from dualstream.solvers.portfolio import late_kernels as _late
from dualstream.solvers.portfolio.late_kernels import CHECKSUM, HEAD, SAMPLES
from dualstream.solvers.portfolio.stack_kernels import BASE, MEMBER, PRIOR, ROLE
from dualstream.solvers.portfolio.weighting_kernels import (
    COUNTED,
    MAX_LOG_ODDS,
    MAX_SCORE,
    MEAN,
    N_OUT,
    base_of,
)
from dualstream.solvers.portfolio.weighting_state import Rule
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.served_form import ClassMixture, Form, NumberMixture, Part
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.text.tokens import LARGEST


class LateRule:
    """The second rule, and the evidence that it is better than the first one."""

    def __init__(self, rule: Rule, eta: float) -> None:
        self.rule = rule
        self._eta = eta
        self._evidence = np.zeros(2)

    @classmethod
    def after(cls, first: Rule, eta: float) -> "LateRule":
        """The second rule at the first late label: a copy of the first one."""
        rule = first.copy()
        if not rule.classes:
            # Scores as served bring their base, the last target as it was known, too.
            rule.roles[rule.roles[:, ROLE] == PRIOR, ROLE] = MEMBER
        return cls(rule, eta)

    @property
    def share(self) -> float:
        """Of the second rule in the portfolio's prediction."""
        return float(_late.second_share(self._evidence, self.rule.classes))

    def mix(self, first: Floats, scores: Floats) -> Floats:
        """The portfolio's scores, for those of the first rule, and for raw scores (n, K)."""
        return self.mixed(first, self.rule.mix(scores))

    def mixed(self, first: Floats, second: Floats) -> Floats:
        """The portfolio's scores for those of both rules."""
        scores = np.empty(len(first))
        _late.mix_rules(self.share, self.rule.classes, first, second, scores)
        return scores

    def count(self, scores: Floats, served: Floats | None, batch: Batch, out: Floats) -> None:
        """Learn rows after the first rule.

        scores   raw scores (n, K) just before each row was learned; overwritten
        served   (n, K + 4); NaN for rows that did not wait, None if none did
        out      (n, N_OUT) of the first rule; receives the portfolio's scores and losses
        """
        rule = self.rule
        if served is None:
            served = np.full((len(batch), HEAD + rule.size), np.nan)
        _late.learn_late(
            scores, served, batch.labels, batch.weights, rule.classes, self._eta,
            rule.roles, rule.r, rule.g, rule.recent, rule.pairs, rule.stack, rule.scratch,
            np.empty(N_OUT), self._evidence, out,
        )  # fmt: skip

    def mix_contributions(
        self, first: tuple[float, float, Floats], second: tuple[float, float, Floats]
    ) -> tuple[float, float, Floats]:
        """Score, base and contributions of the portfolio, for those of both rules.

        A rule's contributions sum to its score minus its base: see contributions.py.
        """
        weights = (1.0 - self.share, self.share)
        score, base = (
            float(self.mixed(np.array([one]), np.array([two]))[0])
            for one, two in zip(first[:2], second[:2], strict=True)
        )
        total = sum(
            weight * self._apart(one[0], one[1]) / (one[0] - one[1]) * one[2]
            for weight, one in zip(weights, (first, second), strict=True)
            if one[0] != one[1]
        )
        moved = sum(
            weight * self._apart(one[0], one[1])
            for weight, one in zip(weights, (first, second), strict=True)
        )
        scale = (score - base) / moved if moved else 0.0
        return score, base, np.zeros(len(first[2])) + scale * total

    def _apart(self, score: float, base: float) -> float:
        """How far the prediction moves from the base to the score."""
        if not self.rule.classes:
            return score - base
        return 1.0 / (1.0 + math.exp(-score)) - 1.0 / (1.0 + math.exp(-base))

    def form(self, first: Form, second: Form) -> Form:
        """See served_form: the mixture of the forms of both rules."""
        share = self.share
        parts = (
            Part("as-learned", 1.0 - share, 1.0, 0.0, first),
            Part("as-served", share, 1.0, 0.0, second),
        )
        if self.rule.classes:
            mixture: ClassMixture | NumberMixture = ClassMixture(parts, MAX_SCORE, MAX_LOG_ODDS)
        else:
            mixture = NumberMixture(parts, float(self.rule.g[MEAN]), -LARGEST, LARGEST)
        return Form(first.dim, (), (mixture,))

    def with_rule(self, rule: Rule) -> "LateRule":
        """The same evidence with a rule of other members."""
        other = LateRule(rule, self._eta)
        other._evidence[:] = self._evidence
        return other

    def state(self) -> State:
        """See Learner."""
        return {"evidence": self._evidence.copy()} | self.rule.state()

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore this state. Raises CorruptState, and then nothing has changed."""
        check_arrays(state, {"evidence": self._evidence.shape})
        if not state["evidence"][_late.PRECISION] >= 0.0:
            raise CorruptState("the precision of the second rule's share is negative")
        self.rule.restore(state)
        self._evidence[:] = state["evidence"]


def served_parts(names: Sequence[str], rule: Rule, late: LateRule | None, scores: Floats) -> Floats:
    """What rows (n, K) of raw scores keep while they wait for their labels, (n, K + 4)."""
    parts = np.empty((len(scores), HEAD + rule.size))
    parts[:, SAMPLES] = rule.g[COUNTED] if late is None else late.rule.g[COUNTED]
    parts[:, CHECKSUM] = _checksum(names)
    bases = [0.0 if rule.classes else float(base_of(int(b), rule.g)) for b in rule.roles[:, BASE]]
    parts[:, HEAD:] = scores + bases
    parts[:, _late.FIRST] = rule.mix(scores)
    parts[:, _late.SECOND] = parts[:, _late.FIRST] if late is None else late.rule.mix(scores)
    return parts


def late_parts(batch: Batch, names: Sequence[str]) -> Floats | None:
    """(n, K + 4): what the rows kept, NaN in SAMPLES for rows that did not wait; None if none did.

    Rows that were served by other members, and rows of weight 0, count as if they had not waited.
    """
    parts = batch.served_parts
    width = HEAD + len(names)
    if parts is None or parts.shape[1] < width:
        return None
    parts = parts[:, :width]
    is_late = np.isfinite(parts[:, :HEAD]).all(axis=1) & (parts[:, CHECKSUM] == _checksum(names))
    is_late &= batch.weights > 0.0
    if not is_late.any():
        return None
    return np.where(is_late[:, None], parts, np.nan)


def first_late(parts: Floats) -> int:
    """The first row that waited."""
    return int(np.argmax(np.isfinite(parts[:, SAMPLES])))


def _checksum(names: Sequence[str]) -> float:
    return float(crc32("\n".join(names).encode()))
