"""Members of a portfolio that learn separately."""

from collections.abc import Callable, Mapping
from copy import copy, deepcopy
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import NotExpressible
from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.nonlinear.learner import NonlinearLearner
from dualstream.solvers.online.rewind import Rewind
from dualstream.solvers.portfolio.fused_members import Blueprint, Fused
from dualstream.solvers.portfolio.pairs import CATEGORIES, shared_with_both, with_pairs
from dualstream.solvers.portfolio.presets import Member
from dualstream.solvers.portfolio.spec import PAIR_CELLS
from dualstream.solvers.portfolio.weighting_kernels import LEARNS, WAS_RESET
from dualstream.solvers.portfolio.weighting_state import Rule
from dualstream.solvers.protocols.certificate import Certificate
from dualstream.solvers.protocols.curves import Curve, curves_of
from dualstream.solvers.protocols.explanation import Explanation, explain
from dualstream.solvers.protocols.learner import Learner, State, has_long_row, under
from dualstream.solvers.protocols.served_form import Form, served_form
from dualstream.solvers.protocols.served_weights import ServedWeights, weights_listed
from dualstream.solvers.rows.batch import Batch


class ModelMember:
    """A model of any algorithm as a member. It is reset at a row that it rejects.

    A row of weight 0 changes nothing, even if it is rejected.
    """

    def __init__(
        self, spec: Mapping[str, Any], make: Callable[[Mapping[str, Any]], Learner]
    ) -> None:
        self._spec, self._make = spec, make
        self._use(make(spec))

    def _use(self, learner: Learner) -> None:
        self._learner = learner
        self._rewind = Rewind(learner, row_is_whole=False)

    def __deepcopy__(self, memo: object) -> "ModelMember":
        other = copy(self)
        if isinstance(self._learner, NonlinearLearner):
            other._use(deepcopy(self._learner))
        else:  # It can have arrays that are views of others, which a deep copy would part.
            other._use(self._make(self._spec))
            other.restore(self.state())
        return other

    def learn(self, batch: Batch) -> tuple[Floats, list[int]]:
        """Learn all rows; scores (n,), and the rows after which the model was reset.

        Rows without a score (NaN) are not listed: the weighting rule detects them itself.
        """
        if isinstance(self._learner, NonlinearLearner):
            # The portfolio has checked the rows.
            return self._learner.learn_checked(batch), []
        scores: list[Floats] = []
        resets: list[int] = []
        done, size = 0, len(batch)
        while done < len(batch) or not scores:
            # After a rejected row, pieces begin at one row and double: more rejected rows may
            # follow.
            outcome = self._rewind.learn_prefix(batch[done : done + size])
            scores.append(outcome.scores)
            done += len(outcome)
            size = 1 if outcome.rejected.any() else 2 * size
            if outcome.rejected.any():
                row = batch[done - 1 : done]
                # The model before the row may well have a score for it.
                score = self.predict(row)
                scores[-1] = np.append(outcome.scores[:-1], score)
                if row.weights[0] > 0.0:
                    self._use(self._make(self._spec))
                    resets += [done - 1] * int(np.count_nonzero(np.isfinite(score)))
        return np.concatenate(scores), resets

    def share_columns(self, other: "ModelMember") -> None:
        """See Portfolio."""
        share = getattr(self._learner, "share_columns", None)
        if share is not None:
            share(other._learner)

    def has_long_row(self, rows: int) -> bool:
        """See protocols/learner.py."""
        return has_long_row(self._learner, rows)

    @property
    def max_rows(self) -> int | None:
        """See MemberView."""
        return getattr(self._learner, "max_rows", None)

    def predict(self, batch: Batch) -> Floats:
        """Scores (n,), NaN for none."""
        scores = self._learner.predict(batch)
        if isinstance(self._learner, NonlinearLearner):
            return scores
        return np.where(np.isfinite(scores), scores, np.nan)

    def explain(self, row: Batch) -> Explanation:
        """See protocols/explanation.py: a score without contributions if the model has none."""
        try:
            return explain(self._learner, row)
        except NotExpressible:
            score = self.predict(row)[0]
            return Explanation.of(score, score, np.empty(0, np.int64), np.empty(0))

    def curves(self) -> list[Curve] | None:
        """See protocols/curves.py."""
        curves = curves_of(self._learner)
        return None if curves is None else curves[0]

    def served_weights(self) -> ServedWeights:
        """See MemberLearner."""
        (served,) = self._learner.served_weights()
        return served

    def form(self) -> Form:
        """See served_form."""
        return served_form(self._learner)

    def certificate(self) -> Certificate | None:
        """See Learner."""
        return self._learner.certificate()

    def state(self) -> State:
        """See Learner."""
        return self._learner.state()

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner."""
        self._learner.restore(state)
        self._rewind.forget()


class KindMember:
    """A member of a kind that exists only in portfolios, with its own feature stages.

    Rows of a member with `pairs` have those of pairs.py, too.
    """

    _FIRST = np.zeros(1, np.int64)

    def __init__(self, member: Member, dim: int, retain: int, reach: float) -> None:
        pairs = member.get("pairs", False)
        self._width, self._has_pairs = dim, pairs is not False
        self._columns = np.array(pairs, np.int64) if isinstance(pairs, list) else CATEGORIES
        width = dim + PAIR_CELLS if self._has_pairs else dim
        self._fused = Fused(Blueprint([member]), width, retain, reach)
        # The kernels take a member's target from a rule: for numbers from its base and scale.
        self._rule = Rule([member], 0.5, 0.0, classes=reach == 0.0)

    def learn(self, batch: Batch) -> tuple[Floats, list[int]]:
        """See ModelMember."""
        scores = np.zeros((len(batch), 1))
        out = self._fused.learn(self._with_pairs(batch), self._FIRST, scores, self._rule)
        if len(batch) == 1:  # Without the time of calls.
            return scores[:, 0], [0] if out[0, LEARNS] == WAS_RESET else []
        return scores[:, 0], np.flatnonzero(out[:, LEARNS] == WAS_RESET).tolist()

    def has_long_row(self, rows: int) -> bool:
        """See ModelMember: kinds do the same work for each row."""
        return False

    def predict(self, batch: Batch) -> Floats:
        """See ModelMember."""
        return self._fused.predict(self._with_pairs(batch))[:, 0]

    def _with_pairs(self, batch: Batch) -> Batch:
        return with_pairs(batch, self._width, self._columns) if self._has_pairs else batch

    def explain(self, row: Batch) -> Explanation:
        """See ModelMember."""
        scores, bases, features, contributions = self._fused.explain(self._with_pairs(row))
        base, shares = float(bases[0]), contributions[0]
        if self._has_pairs:
            width, columns = self._width, self._columns
            lacking, features, shares = shared_with_both(row, width, columns, features, shares)
            base += lacking
        return Explanation.of(scores[0], base, features, shares)

    def curves(self) -> None:
        """None: kinds are linear."""
        return None

    def served_weights(self) -> ServedWeights:
        """See ModelMember; without those of pairs, which have no names."""
        served = self._fused.served_weights(0)
        if not self._has_pairs:
            return served

        def listed() -> tuple[Ints, Floats]:
            features, weights = served.sparse()
            of_row = features < self._width
            return features[of_row], weights[of_row]

        return weights_listed(self._width, served.intercept, listed)

    def form(self) -> Form:
        """See ModelMember."""
        if self._has_pairs:
            kind, field = (
                ("numbers", "number_pairs") if len(self._columns) else ("categories", "pairs")
            )
            raise NotExpressible(
                f"{self._fused.members[0]['name']!r} has learned pairs of {kind}, which a file "
                f'cannot compute: remove this member, or create a model with `"{field}": false`'
            )
        return self._fused.form(0)

    def certificate(self) -> Certificate | None:
        """See ModelMember."""
        return self._fused.certificate(0)

    def state(self) -> State:
        """See ModelMember; the rule of a member for classes has no part in what it learns."""
        state = self._fused.state()
        if self._rule.classes:
            return state
        return state | {f"rule.{name}": array for name, array in self._rule.state().items()}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See ModelMember."""
        if not self._rule.classes:
            self._rule.restore(under("rule.", state))
        self._fused.restore(state)
