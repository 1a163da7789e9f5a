"""Reduces a form to one weight per feature, for formats that support only that."""

import numpy as np

from dualstream.solvers import BalancedForm, Form, Linear, NormForm, NotExpressible, ScoreForm


def one_weight_a_feature(form: Form) -> list[Linear]:
    """The same scores without stages: x . w + intercept. Raises NotExpressible.

    Scaling by counts alone multiplies a feature by a constant, because a row counts itself once in
    each of its nonzero features.
    """
    factors = np.ones(0)
    for stage in form.stages:
        if not isinstance(stage, BalancedForm) or stage.moments or len(factors):
            raise NotExpressible(_why_not(stage))
        counts = np.zeros(form.dim)
        counts[stage.columns] = stage.counts
        factors = ((counts + 1.0) / (stage.rows + 1.0)) ** -stage.power
    return [_times(score, factors) for score in form.scores]


def _times(score: ScoreForm, factors: np.ndarray) -> Linear:
    if not isinstance(score, Linear):
        raise NotExpressible(
            "a portfolio is a mixture of its members, not a sum of weights: choose one of"
            " them as `member`"
        )
    if not len(factors):
        return score
    return Linear(score.places, score.weights * factors[score.places], score.intercept)


def _why_not(stage: object) -> str:
    if isinstance(stage, BalancedForm):
        return (
            "`scaling: balanced` divides a feature by moments that the row itself counts in, which"
            " is no weight; `moments: false` does not"
        )
    if isinstance(stage, NormForm):
        return "`norm` divides a row by its own norm, which is no weight"
    return "`map` makes other features of a row, which are no weights of its own"
