"""Reduces a form to one weight per feature, for formats that support only that."""

import numpy as np

from dualstream.solvers.errors import NotExpressible
from dualstream.solvers.export.refusals import refuse_nonlinear
from dualstream.solvers.protocols.served_form import (
    BalancedForm,
    Form,
    Linear,
    Mixture,
    NormForm,
    ScoreForm,
)


def one_weight_a_feature(form: Form) -> list[Linear]:
    """The same scores without stages: x . w + intercept. Raises NotExpressible.

    Scaling by counts alone multiplies a feature by a constant, because a row counts itself once in
    each of its nonzero features.
    """
    counted: BalancedForm | None = None
    if not any(isinstance(score, Mixture) for score in form.scores):
        refuse_nonlinear(form)
    for stage in form.stages:
        if not isinstance(stage, BalancedForm) or stage.moments or counted is not None:
            raise NotExpressible(_why_not(stage))
        counted = stage
    return [_times(score, counted) for score in form.scores]


def _times(score: ScoreForm, counted: BalancedForm | None) -> Linear:
    if not isinstance(score, Linear):
        raise NotExpressible(
            "a portfolio is a mixture of its members, not a sum of weights: choose one of"
            " them as `member`, or export it as `onnx`"
        )
    if counted is None:
        return score
    counts = _counts_of(score.places, counted)
    factors = ((counts + 1.0) / (counted.rows + 1.0)) ** -counted.power
    return Linear(score.places, score.weights * factors, score.intercept)


def _counts_of(features: np.ndarray, counted: BalancedForm) -> np.ndarray:
    """The counts of these features; 0 for a feature that was never counted."""
    at = np.searchsorted(counted.columns, features)
    is_counted = np.append(counted.columns, -1)[at] == features
    return np.where(is_counted, np.append(counted.counts, 0.0)[at], 0.0)


def _why_not(stage: object) -> str:
    if isinstance(stage, BalancedForm):
        return (
            "`scaling: balanced` divides a feature by moments that the row itself counts in, which"
            " is no weight; `moments: false` does not"
        )
    if isinstance(stage, NormForm):
        return "`norm` divides a row by its own norm, which is no weight"
    return "`map` makes other features of a row, which are no weights of its own"
