"""Which features a sparse model uses, and for how long it has used just these."""

from dataclasses import dataclass

from dualstream.solvers.jit import Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Support:
    """The sign pattern of the penalised weights (without a free intercept) and its history."""

    features: Ints
    """(k,): the indices, from 1, of the features whose weight is not 0, in order."""
    weights: Floats
    """(k,): their weights."""
    unchanged_since: int
    """The pattern is what it was when the learner's `samples` stood here: 0 if it never changed.
    Rows of weight 0 are counted as if they had come before."""
    changes_per_1000: float
    """Weights that became 0, left 0 or changed sign, one that did so n rows ago counting 0.999^n:
    about how many did in the last 1,000 rows."""
