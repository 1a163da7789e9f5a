"""Support of a sparse model: the features it uses, and since when."""

from dataclasses import dataclass

from dualstream.solvers.jit import Floats, Ints


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
