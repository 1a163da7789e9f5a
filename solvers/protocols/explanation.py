"""Explanation: what each feature of one row contributes to its score.

A score is `base` plus the contributions of features. What a contribution is depends on the learner:

    linear        weight times value behind the feature stages; the base is the intercept
    boosted       the changes of the mean of the leaves along the row's path (nonlinear/boosted.py)
    net           the gradient times the standardised value (nonlinear/net.py)
    splines       the value of the feature's curve; the base is the intercept
    portfolio     the members' contributions, by the weighting rule (portfolio/contributions.py)
    multiclass    those of the best class

Learners with a method `explain` explain themselves; all others are linear.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dualstream.solvers.jit import Floats, Indices, Ints

if TYPE_CHECKING:
    from dualstream.solvers.protocols.learner import Learner
    from dualstream.solvers.rows.batch import Batch


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """score = base + sum of contributions, but for rounding. Numbers need not be finite."""

    score: float
    """The row's score, as `predict` computes it."""
    base: float
    """The part of the score that no feature contributes."""
    features: Ints
    """(n,) indices from 0, increasing; the others contribute 0."""
    contributions: Floats
    """(n,) of these features, in units of the score."""
    values: Mapping[int, float] = field(default_factory=dict)
    """Of features that the learner adds to the row, see nonlinear/lags.py."""

    @classmethod
    def of(
        cls,
        score: float,
        base: float,
        features: Ints | Indices,
        contributions: Floats,
        values: Mapping[int, float] | None = None,
    ) -> "Explanation":
        """Features in any order; those that contribute 0 are left out."""
        used = np.flatnonzero(contributions)
        order = used[np.argsort(features[used])]
        return cls(
            float(score),
            float(base),
            features[order].astype(np.int64),
            contributions[order],
            values or {},
        )


def explain(learner: "Learner", row: "Batch") -> Explanation:
    """Explain the score of one row (a batch of length 1) and change nothing.

    Raises ShapeMismatch, and NotExpressible if features have no contributions of their own.
    """
    method: Any = getattr(learner, "explain", None)
    # A diverged model can have weights whose product with a value overflows.
    with np.errstate(over="ignore", invalid="ignore"):
        explained: Explanation = _linear(learner, row) if method is None else method(row)
    return explained


def _linear(learner: "Learner", row: "Batch") -> Explanation:
    """Contributions to a linear score.

    The score of one entry alone is its contribution plus the intercept: reads the weights of the
    row's features alone, whatever the width.
    """
    n, score = len(row.indices), learner.predict(row)[0]
    starts = np.append(0, np.arange(n + 1))
    alone = row.of_checked(
        starts, row.indices, row.values, np.zeros(n + 1), np.ones(n + 1), row.dim
    )
    scores = learner.predict(alone)
    return Explanation.of(score, scores[0], row.indices, scores[1:] - scores[0])


def entries_of_last_row(entries: int, slots: Ints, dense: Indices) -> int:
    """Entries that column_table.emit_row made of a row with `entries` features.

    After the row's own features come the dense columns that it lacks.
    slots   as emit_row has written them; dense   slots of all dense columns
    """
    return entries + int(np.count_nonzero(~np.isin(dense, slots[:entries])))
