"""PortfolioClasses: portfolios for classes whose nonlinear members are shared.

Each class against the rest has a portfolio of its own: linear members, splines, weights of the
members, calibrations and a stack. Members of nonlinear.SHARED exist once: a scorer (see
nonlinear/class_scorer.py) learns every row and scores all classes, and the portfolio of a class
takes the log odds of its class as the score of that member. The portfolio for classes that no row
has had yet takes those of column 0. It learns each batch first, and what splines compute from the
rows alone (nonlinear/spline_columns.py) is shared by all classes.

With many classes their own members take most of the time, and the shared ones predict most of what
can be predicted. So before the row that brings class number FULL + 1, all portfolios of a preset
drop the members of presets.DROPPED, and the new class is a copy that never had them.
"""

from collections.abc import Callable, Collection, Mapping
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
        dropped: Collection[str],
    ) -> None:
        super().__init__(make)
        self._dropped = dropped
        self._make_scorers = make_scorers
        self.scorers = make_scorers()
        self._given = np.empty((0, 0, 0))
        """(n, 1 + K, S): scores of the shared members, while rows are learned."""

    def _add_class(self) -> None:
        if len(self.learners) == FULL and self._dropped:
            self._drop()
        super()._add_class()
        for scorer in self.scorers:
            scorer.add_class()

    def _copy_of_rest(self) -> Learner:
        return deepcopy(self.none_of_them)

    def _join(self, learner: Learner, first: Learner) -> None:
        """See OneVsRest."""
        cast(Portfolio, learner).share_columns(cast(Portfolio, first))

    def _drop(self) -> None:
        """Drop the members that the portfolios of many classes do not have."""
        for one in (self.none_of_them, *self.learners):
            portfolio = cast(Portfolio, one)
            portfolio.drop([name for name in portfolio.names if name in self._dropped])

    def _learn_known(
        self, batch: Batch, class_ids: Ints, is_met: bool
    ) -> tuple[Floats, Floats, Flags, Flags]:
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
