"""PortfolioClasses: portfolios for classes whose nonlinear members are shared.

Each class against the rest has a portfolio of its own: linear members, splines, weights of the
members, calibrations and a stack. Members of nonlinear.SHARED exist once: a scorer (see
nonlinear/class_scorer.py) learns every row and scores all classes, and the portfolio of a class
takes the log odds of its class as the score of that member. The portfolio for classes that no row
has had yet takes those of column 0. It learns each batch first, and what splines compute from the
rows alone (nonlinear/spline_columns.py) is shared by all classes.

With many classes their own members take most of the time, and the shared ones predict most of what
can be predicted. So from the row that brings class number FULL + 1 on, the portfolios of a preset
drop the members of presets.DROPPED: a new class at once, one of the others before each row, the
portfolio for classes that no row has had last. All of them in one row would make that row long.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from dualstream.solvers.jit import Flags, Floats, Ints
from dualstream.solvers.nonlinear.class_scorer import ClassScorer
from dualstream.solvers.nonlinear.multiclass import make_scorer
from dualstream.solvers.online.multiclass import Multiclass, OneVsRest
from dualstream.solvers.portfolio.learner import Portfolio
from dualstream.solvers.portfolio.presets import DROPPED, shared_algorithms
from dualstream.solvers.portfolio.spec import ModelFactory, model_spec
from dualstream.solvers.protocols.explanation import Explanation
from dualstream.solvers.protocols.learner import Learner, Outcome, State, under
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.class_names import names_of
from dualstream.solvers.spec_cache import FixedSpec

FULL = 10
"""Classes with which the portfolios have all members of a preset."""


class PortfolioClasses(OneVsRest):
    """The portfolios of all classes, and the scorers of their shared members."""

    never_rejects = True

    def __init__(
        self,
        make: Callable[[], Portfolio],
        make_scorers: Callable[[], list[ClassScorer]],
        dropped: frozenset[str],
    ) -> None:
        super().__init__(make)
        self._dropped = dropped
        self._make_scorers = make_scorers
        self.scorers = make_scorers()
        self._given = np.empty((0, 0, 0))
        """(n, 1 + K, S): scores of the shared members, while rows are learned."""

    def _add_class(self) -> None:
        super()._add_class()
        for scorer in self.scorers:
            scorer.add_class()
        if len(self.learners) > FULL:
            self._drop_from(self.learners[-1])

    def _copy_of_rest(self) -> Learner:
        return deepcopy(self.none_of_them)

    def _join(self, learner: Learner, first: Learner) -> None:
        """See OneVsRest. A class without the dropped members has nothing to share."""
        one, rest = cast(Portfolio, learner), cast(Portfolio, first)
        kept = [name for name in rest.names if name not in self._dropped]
        if one.names == rest.names or one.names != kept:
            one.share_columns(rest)

    def _drop_from(self, learner: Learner) -> None:
        """Drop the members that the portfolio of one class among many does not have."""
        portfolio = cast(Portfolio, learner)
        portfolio.drop([name for name in portfolio.names if name in self._dropped])

    def _drops(self) -> bool:
        """Whether there are many classes, and some portfolios still have all members."""
        rest = cast(Portfolio, self.none_of_them)
        return len(self.learners) > FULL and not self._dropped.isdisjoint(rest.names)

    def _rows_of_piece(self) -> int:
        return 1 if self._drops() else super()._rows_of_piece()

    def _learn_known(
        self, batch: Batch, class_ids: Ints, is_met: bool
    ) -> tuple[Floats, Floats, Flags, Flags]:
        if self._drops() and batch.weights[0] > 0.0:
            # The last one computes what splines share.
            full = next(
                one
                for one in (*self.learners, self.none_of_them)
                if not self._dropped.isdisjoint(cast(Portfolio, one).names)
            )
            self._drop_from(full)
        scores = [scorer.learn(batch, class_ids, is_met) for scorer in self.scorers]
        self._given = np.stack(scores, axis=-1)
        result = super()._learn_known(batch, class_ids, is_met)
        self._given = np.empty((0, 0, 0))
        return result

    def _learn_one(self, index: int, batch: Batch) -> Outcome:
        one = self.learners[index - 1] if index else self.none_of_them
        return cast(Portfolio, one).learn(batch, self._given[:, index])

    def scores(self, batch: Batch) -> Floats:
        """See KnownClasses."""
        class_scores = np.stack([scorer.predict(batch) for scorer in self.scorers], axis=-1)
        scores = np.empty((len(self.learners), len(batch)))
        for index, one in enumerate(self.learners):
            scores[index] = cast(Portfolio, one).predict(batch, class_scores[:, 1 + index])
        return scores

    def explain_class(self, index: int, row: Batch) -> Explanation:
        """See OneVsRest. What shared members say belongs to the base."""
        class_scores = np.stack([scorer.predict(row) for scorer in self.scorers], axis=-1)
        return cast(Portfolio, self.learners[index]).explain(row, class_scores[0, 1 + index])

    def has_long_row(self, rows: int) -> bool:
        """See protocols/learner.py."""
        return super().has_long_row(rows) or any(one.has_long_row(rows) for one in self.scorers)

    def state(self) -> State:
        """See Learner."""
        state = super().state()
        for index, scorer in enumerate(self.scorers):
            state |= {f"shared.{index}.{name}": a for name, a in scorer.state().items()}
        return state

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner."""
        scorers, classes = self._make_scorers(), len(names_of(state))
        for index, scorer in enumerate(scorers):
            scorer.restore(under(f"shared.{index}.", state), classes)
        super().restore(state)
        self.scorers = scorers


def make_classes(spec: Mapping[str, Any], models: ModelFactory) -> Multiclass:
    """The learner of a resolved portfolio with task multiclass and members of SHARED."""
    binary = FixedSpec({**spec, "task": "binary", "labels": None})
    scorers = [FixedSpec(model_spec(member, spec)) for member in shared_algorithms(spec)]
    dropped = DROPPED if isinstance(spec["members"], str) else frozenset[str]()
    classes = PortfolioClasses(
        lambda: Portfolio(binary, models, shares=True),
        lambda: [make_scorer(scorer) for scorer in scorers],
        dropped,
    )
    return Multiclass(spec, classes)
