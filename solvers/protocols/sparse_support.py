"""Support of a sparse model: the features it uses, and since when."""

from collections.abc import Callable
from dataclasses import dataclass

from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.protocols.learner import Learner


@dataclass(frozen=True, slots=True)
class LocalPhases:
    """Local phases of RDA+, and what is left to the optimum.

    The counts are not part of the state: they begin with 0 when a process loads the model.
    """

    delta: float | None
    """delta of (2.45) of the thesis: the root mean square, over all features and the intercept, of
    the least subgradient of the objective on the retained rows. None without rows."""
    accepted: int
    """Local phases whose minimum replaced the weights."""
    refused: int
    """Those whose minimum predicted newer rows worse than the weights did."""
    unsolved: int
    """Those with more than `max_features` active features, or in which no minimum was found."""
    max_features: int


@dataclass(frozen=True, slots=True, eq=False)
class Support:
    """Sign pattern of the penalised weights (without a free intercept) and its history."""

    features: Ints
    """(k,): increasing indices, from 1, of the features with a nonzero weight."""
    weights: Floats
    """(k,): their weights."""
    unchanged_since: int
    """The value of `samples` at the last change of the pattern; 0 if it never changed. Rows of
    weight 0 count like the row before them."""
    changes_per_1000: float
    """Weights that became 0, left 0 or changed sign. A change n rows ago counts 0.999^n, so this is
    about the number of changes in the last 1,000 rows."""


def support_of(learner: Learner) -> Support | None:
    """The learner's support; None if it does not track one. O(dim)."""
    find: Callable[[], Support] | None = getattr(learner, "support", None)
    return None if find is None else find()


def local_phases_of(learner: Learner) -> LocalPhases | None:
    """The local phases of RDA+; None for other learners. O(dim + retained entries)."""
    find: Callable[[], LocalPhases] | None = getattr(learner, "local_phases", None)
    return None if find is None else find()
