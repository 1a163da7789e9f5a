"""Rule: shares, calibrations and losses of a portfolio's members."""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.portfolio import stack_kernels as _stack, weighting_kernels as _rule
from dualstream.solvers.portfolio.stack_kernels import (
    BASE,
    MAX_INPUT,
    MAX_P,
    MAX_W,
    MEMBER,
    PRIOR,
    ROLE,
    STACK,
    start_stack,
)
from dualstream.solvers.portfolio.weighting_kernels import (
    COUNTED,
    ETA,
    IS_ACTIVE,
    LAST_BASE,
    MAX_ABSOLUTE,
    MAX_LOG_LOSS,
    MEAN_BASE,
    N_OUT,
    N_RULE,
    N_SCRATCH,
    N_SHARED,
    NO_BASE,
    NOT_ACTIVE,
    RECENT,
    SHARE,
    V_BEFORE,
    A,
    B,
    V,
)
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.member_learner import MemberView
from dualstream.solvers.protocols.served_form import (
    ClassMixture,
    Form,
    Linear,
    NumberMixture,
    Part,
    ScoreForm,
    Stack,
)
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import Batch


class Rule:
    """State of the weighting rule (weighting_kernels.py); `classes`: labels are -1 and 1, else
    numbers."""

    def __init__(
        self, members: Sequence[Mapping[str, Any]], eta: float, share: float, *, classes: bool
    ) -> None:
        n = len(members)
        self.classes = classes
        self.roles = np.array([_role_of(member) for member in members], np.int64).reshape(n, 2)
        self.r = np.zeros((N_RULE, n))
        for index in range(n):
            self._start(index)
        self.r[V] = 1.0 / n
        self.g = np.zeros(N_SHARED if classes else N_SHARED + 1)
        self.g[ETA], self.g[SHARE] = eta, share
        self.recent = np.full((RECENT, 2 * n), NOT_ACTIVE)
        self.pairs = np.zeros((3 * n, n))
        self.scratch = np.zeros((N_SCRATCH, n))
        self._start_stack()

    def _start_stack(self) -> None:
        """The numbers of the stack, if a member is one: see stack_kernels.py."""
        n, is_stack = self.size, self.roles[:, ROLE] == STACK
        self.stack = np.zeros((n + 4 if is_stack.any() else 0, n + 1))
        if is_stack.any():
            start_stack(0.1 if self.classes else 1.0, self.stack)
            self.stack[n + 1, :-1][~is_stack] = 1.0 / max(1, n - 1)

    def _start(self, index: int) -> None:
        self.r[:, index] = 0.0
        self.r[IS_ACTIVE, index] = 1.0
        _rule.start_calibration(self.r, index)

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.roles)

    @property
    def shares(self) -> Floats:
        """(K,): v; 0 for all but a promoted member."""
        shares: Floats = self.r[V].copy()
        return shares

    @property
    def resets(self) -> Floats:
        """(K,): how often each member was reset."""
        resets: Floats = self.r[_rule.RESETS]
        return resets

    def is_active(self, index: int) -> bool:
        """Whether the member learns; only the promoted one does while one is promoted."""
        return bool(self.r[IS_ACTIVE, index])

    def count(self, scores: Floats, labels: Floats, weights: Floats) -> Floats:
        """Apply the rule to rows of raw scores (n, K); its outputs (n, N_OUT)."""
        out = np.empty((len(scores), N_OUT))
        _rule.rule_rows(
            scores, labels, weights, self.classes, self.roles, self.r, self.g, self.recent,
            self.pairs, self.stack, self.scratch, out,
        )  # fmt: skip
        return out

    def mix(self, scores: Floats) -> Floats:
        """(n,): the portfolio's score of each row of raw scores (n, K), by the current shares."""
        out = np.empty(len(scores))
        _rule.mix_rows(
            scores, self.classes, self.roles, self.r, self.g, self.stack, self.scratch, out
        )
        return out

    def copy(self) -> "Rule":
        """A rule of the same state."""
        eta, share = float(self.g[ETA]), float(self.g[SHARE])
        other = Rule([{}] * self.size, eta, share, classes=self.classes)
        other.roles[:] = self.roles
        other._start_stack()
        other.restore(self.state())
        return other

    def form(self, names: Sequence[str], form_of: Callable[[int], Form | None], dim: int) -> Form:
        """See served_form: the function `mix` for members with these forms (None: a prior).

        Members that do not count are not asked: no file may have their form.
        """
        odds = (self.g[_rule.POSITIVE] + 0.5) / (self.g[_rule.NEGATIVE] + 0.5)
        prior = max(min(math.log(odds), _rule.MAX_SCORE), -_rule.MAX_SCORE)
        among = _stack.stack_among(self.roles) if len(self.stack) else -1
        has_stack = among >= 0 and self.is_active(among)
        parts, weights = [], []
        for index, name in enumerate(names):
            r = self.r[:, index]
            # A member without a share is still an input of the stack.
            if index == among or not self.is_active(index) or (r[V] == 0.0 and not has_stack):
                continue
            form = form_of(index)
            a, b = float(r[A]), float(r[B])
            if not self.classes:
                a, b = 1.0, float(_rule.base_of(int(self.roles[index, BASE]), self.g))
            elif form is None:
                a, b = 0.0, a * prior + b
            parts.append(Part(name, float(r[V]), a, b, form))
            if has_stack:
                weights.append(float(self.stack[self.size + 1, index]))
        stack = self._stack_form(among, tuple(weights)) if has_stack else None
        return Form(dim, (), (self._mixture(tuple(parts), stack),))

    def _stack_form(self, index: int, weights: tuple[float, ...]) -> Stack:
        share, a, b = (float(self.r[part, index]) for part in (V, A, B))
        if self.classes:
            intercept = float(self.stack[self.size + 1, self.size])
            return Stack(share, a, b, weights, intercept, MAX_INPUT)
        square = float(self.g[_rule.SQUARE])
        scale = math.sqrt(square) if square > 0.0 else 1.0
        return Stack(share, 1.0, 0.0, weights, 0.0, _stack._MOST_NUMBER * scale)

    def _mixture(self, parts: tuple[Part, ...], stack: Stack | None) -> ScoreForm:
        if self.classes:
            return ClassMixture(parts, _rule.MAX_SCORE, _rule.MAX_LOG_ODDS, stack)
        if self.g[_rule.ROWS_SEEN] == 0.0:
            return Linear.of(np.empty(0), 0.0)
        low, high = float(self.g[_rule.LOW]), float(self.g[_rule.HIGH])
        beyond = _rule._BEYOND * (high - low)
        return NumberMixture(parts, float(self.g[_rule.MEAN]), low - beyond, high + beyond, stack)

    def view(
        self, index: int, member: Mapping[str, Any], has_certificate: bool, max_rows: int | None
    ) -> MemberView:
        """Figures of a member; a share is 0 while another member is promoted."""
        r, is_active = self.r[:, index], self.is_active(index)
        rows, n_recent = int(r[_rule.ROWS]), min(int(self.g[COUNTED]), RECENT)
        recent = self.recent[:n_recent, [index, self.size + index]]
        recent = recent[recent[:, 0] != NOT_ACTIVE]
        return MemberView(
            name=member["name"],
            spec={field: value for field, value in member.items() if field != "name"},
            weight=float(r[V]) if is_active else 0.0,
            active=is_active,
            rows=rows,
            loss=_mean(r[_rule.LOSS], rows),
            error_rate=_mean(r[_rule.MISTAKES], rows) if self.classes else None,
            rolling_rows=len(recent),
            rolling_loss=_mean(math.fsum(recent[:, 0]), len(recent)),
            rolling_error_rate=(
                _mean(math.fsum(recent[:, 1]), len(recent)) if self.classes else None
            ),
            resets=int(r[_rule.RESETS]),
            calibration=(float(r[A]), float(r[B])) if self.classes else None,
            has_certificate=has_certificate,
            max_rows=max_rows,
        )

    @property
    def most(self) -> float:
        """The largest loss charged to a member for a row."""
        return MAX_LOG_LOSS if self.classes else MAX_ABSOLUTE

    def difference(self, a: int, b: int) -> tuple[int, float, float]:
        """Rows that both members learned, the sum of the differences of their losses, and of their
        squares."""
        n, sign = self.size, 1.0 if a < b else -1.0
        i, j = min(a, b), max(a, b)
        rows, total, squares = (float(self.pairs[part * n + j, i]) for part in range(3))
        return int(rows), sign * total, squares

    # -- changing the list -----------------------------------------------------------------------

    def reset_member(self, index: int) -> None:
        """Count a reset of the member and restart its calibration."""
        _rule.start_calibration(self.r, index)
        self.r[_rule.RESETS, index] += 1.0

    def joined(
        self, member: Mapping[str, Any], scores: Floats, rows: Batch, resets: Sequence[int]
    ) -> "Rule":
        """The rule with one more member, calibrated on its scores (n,) of these rows.

        It begins with `share`, which the others give up in proportion. `resets`: rows after which
        it was reset.
        """
        n = self.size
        more = self._with_new(member)
        share = float(self.g[SHARE])
        more.r[V, :n] *= 1.0 - share
        more.r[V, n] = share
        if self.classes and more.roles[n, ROLE] == MEMBER:
            done = 0
            for row in resets:
                more._calibrate(n, scores[done : row + 1], rows[done : row + 1])
                more.reset_member(n)
                done = row + 1
            more._calibrate(n, scores[done:], rows[done:])
        return more

    def _with_new(self, member: Mapping[str, Any]) -> "Rule":
        """The rule with one more member, which has learned nothing."""
        eta, share, n = float(self.g[ETA]), float(self.g[SHARE]), self.size
        more = Rule([{}] * n + [member], eta, share, classes=self.classes)
        more.g[:], more.roles[:n], more.r[:, :n] = self.g, self.roles, self.r
        more.recent.reshape(RECENT, 2, n + 1)[:, :, :n] = self.recent.reshape(RECENT, 2, n)
        more.pairs.reshape(3, n + 1, n + 1)[:, :n, :n] = self.pairs.reshape(3, n, n)
        more._start_stack()
        if len(self.stack):
            # A new input has weight 0.
            old = [*range(n), n + 1]
            more.stack[np.ix_(old, old)] = self.stack[: n + 1]
            more.stack[n + 2] = 0.0
            more.stack[n + 2, old] = self.stack[n + 1]
        return more

    def _calibrate(self, index: int, scores: Floats, rows: Batch) -> None:
        state, scratch = (
            np.ascontiguousarray(self.r[:, index : index + 1]),
            np.empty((N_SCRATCH, 1)),
        )
        _rule.calibrate_rows(scores, rows.labels, rows.weights, state, scratch)
        self.r[:, index : index + 1] = state

    def without(self, *indices: int) -> "Rule":
        """The rule without some members; the others divide their shares in proportion to theirs.

        If their shares are all 0, possible with `share` 0, they become equal.
        """
        n, kept = self.size, [j for j in range(self.size) if j not in indices]
        fewer, m, old = copy(self), len(kept), np.array(kept)
        fewer.g, fewer.roles, fewer.r = self.g.copy(), self.roles[old], self.r.take(old, axis=1)
        fewer.recent = self.recent.take(np.concatenate([old, n + old]), axis=1)
        fewer.pairs = self.pairs.reshape(3, n, n)[:, old[:, None], old].reshape(3 * m, m)
        fewer.scratch = np.zeros((N_SCRATCH, m))
        has_stack = STACK in fewer.roles[:, ROLE]
        rows = [*kept, *range(n, n + 4)] if has_stack else []
        fewer.stack = self.stack[np.ix_(rows, [*kept, n])]
        total = float(fewer.r[V].sum())
        fewer.r[V] = fewer.r[V] / total if total > 0.0 else 1.0 / m
        return fewer

    def promote(self, index: int) -> None:
        """Let only one member learn and predict; the shares of all are saved."""
        self.r[V_BEFORE] = self.r[V]
        self.r[V] = self.r[IS_ACTIVE] = 0.0
        self.r[V, index] = self.r[IS_ACTIVE, index] = 1.0

    def demote(self) -> None:
        """Reactivate all members with their saved shares."""
        self.r[V] = self.r[V_BEFORE]
        self.r[V_BEFORE] = 0.0
        self.r[IS_ACTIVE] = 1.0

    # -- state -----------------------------------------------------------------------------------

    def state(self) -> State:
        """The state, as copies; `recent` has as many rows as were counted."""
        state = {
            "roles": self.roles.copy(),
            "members": self.r.copy(),
            "shared": self.g.copy(),
            "recent": self.recent[: min(int(self.g[COUNTED]), RECENT)].copy(),
            "pairs": self.pairs.copy(),
        }
        if len(self.stack):
            state["stack"] = self.stack[: self.size + 2].copy()
        return state

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore this state. Raises CorruptState, and then nothing has changed."""
        check_arrays(state, {"shared": self.g.shape})
        n_recent = min(int(state["shared"][COUNTED]), RECENT)
        check_arrays(
            state,
            {
                "roles": self.roles.shape,
                "members": self.r.shape,
                "recent": (n_recent, self.recent.shape[1]),
                "pairs": self.pairs.shape,
            },
        )
        if len(self.stack):
            check_arrays(state, {"stack": (self.size + 2, self.size + 1)})
            *p, w = np.abs(state["stack"])
            if np.max(p) > MAX_P or np.max(w) > MAX_W:
                raise CorruptState("the stack is damaged")
        roles: Ints = state["roles"].astype(np.int64)
        if not np.array_equal(roles, self.roles) or not state["members"][IS_ACTIVE].any():
            raise CorruptState("the roles of the members are damaged")
        shares, sums = state["members"][[V, V_BEFORE]], state["members"][_rule.CURVATURE_A :]
        counts = state["shared"][COUNTED : _rule.NEGATIVE + 1]
        if shares.max() > 1.0 + 1e-9 or min(map(np.min, (shares, sums, counts))) < 0.0:
            raise CorruptState("a share is not between 0 and 1, or a count is negative")
        self.r[:], self.g[:] = state["members"], state["shared"]
        self.pairs[:] = state["pairs"]
        if len(self.stack):
            self.stack[: self.size + 2] = state["stack"]
        self.recent[:] = NOT_ACTIVE
        self.recent[:n_recent] = state["recent"]


def _mean(total: float, rows: int) -> float | None:
    return float(total) / rows if rows else None


def _role_of(member: Mapping[str, Any]) -> tuple[int, int]:
    """ROLE and BASE; a member that is a model corrects no base."""
    bases = {"mean": MEAN_BASE, "last": LAST_BASE, None: NO_BASE}
    role = {"prior": PRIOR, "stack": STACK}.get(member.get("kind", ""), MEMBER)
    return role, bases[member.get("base")]
