"""Form: the served model as numbers, for exports that score rows without this package.

A form computes what `predict` does. A row x of width `dim` passes through `stages` in their order
and becomes h. Each of `scores` (one, or one per class) is h . w + b, a nonlinear function of h, or
a mixture of other forms of h. A form cannot learn.

Nonlinear functions except `Net` read columns of h in single precision: x is h_j, clipped to
[-largest, largest] and rounded to float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import NotExpressible
from dualstream.solvers.jit import Flags, Floats, Ints
from dualstream.solvers.protocols.learner import Learner
from dualstream.solvers.protocols.served_weights import ServedWeights

if TYPE_CHECKING:
    from dualstream.solvers.rows.batch import Batch


@dataclass(frozen=True, slots=True)
class BalancedForm:
    """Balanced scaling, which counts the row itself: formulas in features/scaling.py.

    Arrays (n,) describe the columns that were ever not 0, in increasing order; all others have
    count 0. In the formulas a row is number rows + 1, and its values enter count, mean and
    deviations.
    """

    rows: float
    power: float
    moments: bool
    columns: Ints
    """From 0."""
    counts: Floats
    means: Floats
    """0 without moments, like the deviations."""
    deviations: Floats
    """Sums of squared deviations from the mean."""
    dense: Flags
    limits: tuple[Floats, Floats] | None = None
    """Values other than 0 are first clipped to these (low, high)."""


@dataclass(frozen=True, slots=True)
class FourierForm:
    """h = sqrt(2 / D) cos(x nu + beta), nu (dim, D) and beta (D,)."""

    nu: Floats
    beta: Floats


@dataclass(frozen=True, slots=True)
class NystroemForm:
    """L h = k with k_i = exp(-gamma |x - z_i|^2); h is padded with zeros up to `components`."""

    landmarks: "Batch"
    """The rows z_i, as many as L has."""
    factor: Floats
    """L (rank, rank), lower triangular."""
    gamma: float
    components: int


@dataclass(frozen=True, slots=True)
class NormForm:
    """h = x / |x|; or running, x / sqrt((squares + |x|^2) / (rows + 1)); x where that is 0."""

    running: bool
    rows: float = 0.0
    squares: float = 0.0


StageForm = BalancedForm | FourierForm | NystroemForm | NormForm


@dataclass(frozen=True, slots=True)
class Linear:
    """h . w + intercept, storing the nonzero weights."""

    places: Ints
    """From 0, increasing."""
    weights: Floats
    intercept: float

    @classmethod
    def of(cls, weights: Floats, intercept: float) -> "Linear":
        features = np.flatnonzero(weights)
        return cls(features, weights[features], float(intercept))

    @classmethod
    def of_served(cls, served: ServedWeights) -> "Linear":
        """A copy of the served weights."""
        features, weights = served.sparse()
        return cls(features, weights, float(served.intercept))


@dataclass(frozen=True, slots=True)
class Trees:
    """base + the value of the leaf that a row reaches in each of T trees of N nodes.

    Node 0 is the root. A node with feature >= 0 is split: its children are `left` (where x of
    column `feature` is <= threshold) and left + 1.
    """

    columns: Ints
    """(S,) the index of each column in h, from 0."""
    largest: float
    base: float
    feature: Ints
    """(T, N) a place in `columns`, or -1 for a leaf; like the following."""
    left: Ints
    threshold: Floats
    value: Floats


@dataclass(frozen=True, slots=True)
class Curves:
    """base + a function of each column: linear between its knots, constant beyond the outer ones.

    A column without knots adds 0.
    """

    columns: Ints
    """(S,) as of Trees."""
    largest: float
    base: float
    n_knots: Ints
    """(S,)"""
    knots: Floats
    """(S, K) increasing; each row has n_knots of them, like its heights."""
    heights: Floats


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The nearest K of n stored rows, in standard units; formulas in nonlinear/neighbours.py.

    z = (x - means) / deviations, clipped to [-reach, reach] and rounded to float32. Distances are
    sums of squares in float32, column by column; of equal ones the first row is nearer.
    """

    columns: Ints
    """(S,) as of Trees."""
    largest: float
    means: Floats
    deviations: Floats
    """(S,) infinite for a constant column."""
    reach: float
    rows: npt.NDArray[np.float32]
    """(S, n) by column."""
    labels: Floats
    """(n,) -1 and 1 for classes."""
    weights: Floats
    neighbours: int
    """K <= n. The score is 0 if it is 0."""
    sharpness: float
    start: float | None
    """Classes: added to both sums of weights. Numbers: None."""
    mean: float
    """Numbers: of the labels so far."""


@dataclass(frozen=True, slots=True)
class Net:
    """shift + scale (out . q + out_bias), q = max(0, z second + second_bias), z = max(0, c first +
    first_bias), where c is h behind `scaling`, clipped to [-reach, reach]."""

    scaling: BalancedForm
    """Its columns are the net's inputs."""
    reach: float
    first: Floats
    """(columns of the scaling, units)"""
    first_bias: Floats
    second: Floats
    """(units, last)"""
    second_bias: Floats
    out: Floats
    out_bias: float
    shift: float
    scale: float


NonlinearScore = Trees | Curves | Neighbours | Net


@dataclass(frozen=True, slots=True)
class Part:
    """A member of a mixture. Without a form, its score is the constant `b`, or absent."""

    name: str
    share: float
    a: float
    """Classes: the probability is sigmoid(clip(a m + b)) of the score m, clipped."""
    b: float
    """Numbers: the prediction is m + b, clipped."""
    form: "Form | None"


@dataclass(frozen=True, slots=True)
class Stack:
    """A part of a mixture whose score m is made of the other parts; see portfolio/stack_kernels.py.

    m = intercept + sum of weight_k h_k. h_k is the a m + b of part k, for numbers the distance of
    its prediction from the mean; clipped to [-largest_input, largest_input]. For numbers the
    prediction is mean + m, clipped.
    """

    share: float
    a: float
    b: float
    weights: tuple[float, ...]
    """One for each part."""
    intercept: float
    largest_input: float


@dataclass(frozen=True, slots=True)
class ClassMixture:
    """log(p / (1 - p)) of p = sum of share sigmoid(clip(a clip(m) + b)); see
    portfolio/weighting_state.py."""

    parts: tuple[Part, ...]
    largest_score: float
    """|m| is clipped to this."""
    largest_log_odds: float
    """|a m + b| is clipped to this."""
    stack: Stack | None = None


@dataclass(frozen=True, slots=True)
class NumberMixture:
    """mean + sum of share (clip(m + b) - mean), in [low, high]; see weighting_state.py."""

    parts: tuple[Part, ...]
    mean: float
    low: float
    high: float
    stack: Stack | None = None


Mixture = ClassMixture | NumberMixture
ScoreForm = Linear | NonlinearScore | Mixture


@dataclass(frozen=True, slots=True)
class Form:
    """The served model; see the module docstring."""

    dim: int
    stages: tuple[StageForm, ...]
    scores: tuple[ScoreForm, ...]

    def behind(self, *stages: StageForm, dim: int) -> "Form":
        """The same form with these stages in front of it, for rows of width `dim`."""
        return Form(dim, (*stages, *self.stages), self.scores)


def served_form(learner: Learner) -> Form:
    """Form of the learner's current state. Raises NotExpressible."""
    form = getattr(learner, "form", None)
    if form is not None:
        result: Form = form()
        return result
    (served,) = learner.served_weights()
    return Form(served.dim, (), (Linear.of_served(served),))


def joined_scores(forms: Sequence[Form], dim: int) -> Form:
    """One score per form, for learners of the same rows without stages of their own."""
    if any(form.stages for form in forms):
        raise NotExpressible("its classes have separate feature stages")
    return Form(dim, (), tuple(score for form in forms for score in form.scores))


def numbers_in(form: Form) -> int:
    """Number of stored numbers that grow with a model's size."""
    total = 0
    for stage in form.stages:
        if isinstance(stage, FourierForm):
            total += stage.nu.size
        elif isinstance(stage, NystroemForm):
            total += stage.factor.size + len(stage.landmarks.values)
        elif isinstance(stage, BalancedForm):
            total += 5 * len(stage.columns)
    return total + sum(_numbers_in_score(score) for score in form.scores)


def _numbers_in_score(score: ScoreForm) -> int:
    if isinstance(score, Mixture):
        return sum(numbers_in(part.form) for part in score.parts if part.form is not None)
    if isinstance(score, Linear):
        return 2 * len(score.places)
    if isinstance(score, Trees):
        return 4 * score.value.size
    if isinstance(score, Curves):
        return 2 * score.knots.size
    if isinstance(score, Neighbours):
        return score.rows.size
    return score.first.size + score.second.size


def columns_of(form: Form, named: Ints | None = None) -> Ints:
    """Increasing indices, from 0, of the features that any score depends on, if no stage mixes
    features.

    named  indices of all features that rows have had; None if some are not known

    Raises NotExpressible before a map, where all features may matter, and before a norm if some of
    them are not known.
    """
    columns = [np.empty(0, np.int64)]
    for stage in form.stages:
        if isinstance(stage, NormForm) and named is not None:
            columns.append(named)
        elif not isinstance(stage, BalancedForm):
            raise NotExpressible("its scores depend on every feature of a row (map or norm)")
    for score in form.scores:
        if isinstance(score, Mixture):
            parts = [part.form for part in score.parts if part.form is not None]
            columns += [columns_of(part, named) for part in parts]
        else:
            columns.append(_columns_of_score(score))
    return np.unique(np.concatenate(columns))


def _columns_of_score(score: Linear | NonlinearScore) -> Ints:
    if isinstance(score, Linear):
        return score.places
    if isinstance(score, Net):
        return score.scaling.columns
    if isinstance(score, Trees):
        return score.columns[np.unique(score.feature[score.feature >= 0])]
    return score.columns


def classes_of(learner: Learner) -> tuple[str, ...]:
    """The classes of a multiclass learner, as JSON texts, in the order of its scores."""
    classes: tuple[str, ...] = getattr(learner, "classes", ())
    return classes


def gives_probabilities(learner: Learner) -> bool:
    """Whether sigmoid(score) is a probability, normalised over the classes if there are more."""
    ask: Any = getattr(learner, "class_probabilities", None)
    if ask is not None:
        return ask(np.zeros((1, 1))) is not None
    return learner.probabilities(np.zeros(1)) is not None
