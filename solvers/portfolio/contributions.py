"""Contributions of features to the score of a portfolio, from those to the members' scores.

The rule (weighting_kernels.py, stack_kernels.py) is a chain of increasing functions of one number
and of weighted sums. A function f of a member's score m, whose base is m', multiplies the member's
contributions by (f(m) - f(m')) / (m - m'). So they sum to f(m) - f(m'), whatever f clips or bends.
This is the rescale rule of Shrikumar, Greenside and Kundaje, "Learning important features through
propagating activation differences", 2017. Where f is linear the factor is its slope. The
portfolio's base is its score with every member at its base.
"""

import math

import numpy as np

from dualstream.solvers.jit import Flags, Floats
from dualstream.solvers.portfolio import stack_kernels as _stack, weighting_kernels as _rule
from dualstream.solvers.portfolio.stack_kernels import ROLE, STACK
from dualstream.solvers.portfolio.weighting_kernels import IS_ACTIVE, OWN, A, B, V
from dualstream.solvers.portfolio.weighting_state import Rule

_NEAR = 1e-7
"""Relative distance of two arguments from which on the slope at one of them is used."""


def mixed_contributions(
    rule: Rule, scores: Floats, bases: Floats, parts: Floats
) -> tuple[float, float, Floats]:
    """The portfolio's score of one row, its base, and the contributions (n,) of the features.

    scores (K,) of the members, NaN for none; bases (K,); parts (K, n): the members' contributions
    """
    # A member that is not finite contributes nothing.
    is_finite = np.isfinite(scores) & np.isfinite(bases) & np.isfinite(parts).all(axis=1)
    members = np.stack([scores, np.where(is_finite, bases, scores)])
    parts = np.where(is_finite[:, None], parts, 0.0)
    total, predictions, inputs = _mixed(rule, members)
    stack = np.flatnonzero(rule.roles[:, ROLE] == STACK)
    if len(stack):
        weights = rule.stack[rule.size + 1]
        of_inputs = _slopes(
            inputs[:, :-1], members, _tangents_of_inputs(rule, members[0], predictions[0])
        )
        parts[stack[0]] = (weights[:-1] * of_inputs) @ parts
        members[:, stack[0]] = inputs @ weights
    slopes = _slopes(predictions, members, _tangents(rule, members[0], predictions[0]))
    shares = rule.r[IS_ACTIVE] * rule.r[V]
    contributions = (shares * slopes) @ parts
    if rule.classes:
        p = predictions @ shares
        contributions *= _slopes(total, p, 1.0 / (p[0] * (1.0 - p[0])))
    return float(total[0]), float(total[1]), contributions


def _mixed(rule: Rule, members: Floats) -> tuple[Floats, Floats, Floats]:
    """Scores (2,) of the portfolio for scores (2, K) of the members; what each of these predicts,
    (2, K), and the inputs of the stack, (2, K + 1), zeros without a stack."""
    total, predictions = np.empty(2), np.empty(members.shape)
    inputs = np.zeros((2, rule.size + 1))
    for row in range(2):
        total[row] = rule.mix(members[row : row + 1].copy())[0]
        predictions[row] = rule.scratch[OWN]
        if len(rule.stack):
            inputs[row] = rule.stack[rule.size + 2]
    return total, predictions, inputs


def _slopes(y: Floats, x: Floats, tangents: Floats | float) -> Floats:
    """(y_0 - y_1) / (x_0 - x_1); the tangent where both x are almost equal."""
    apart = x[0] - x[1]
    is_apart = np.abs(apart) > _NEAR * (np.abs(x[0]) + np.abs(x[1]))
    safe = np.where(is_apart, apart, 1.0)
    slopes: Floats = np.where(is_apart, (y[0] - y[1]) / safe, tangents)
    return slopes


def _tangents(rule: Rule, members: Floats, predictions: Floats) -> Floats:
    """(K,): the derivative of each member's prediction `predictions` by its score."""
    g = rule.g
    if rule.classes:
        rising = rule.r[A] * predictions * (1.0 - predictions)
        is_inside = _is_inside(rule, members, _rule.MAX_LOG_ODDS)
    else:
        rising = np.where(rule.roles[:, ROLE] == STACK, _scale(rule), 1.0)
        beyond = _rule._BEYOND * (g[_rule.HIGH] - g[_rule.LOW])
        is_inside = (predictions > g[_rule.LOW] - beyond) & (predictions < g[_rule.HIGH] + beyond)
    return np.where(is_inside, rising, 0.0)


def _tangents_of_inputs(rule: Rule, members: Floats, predictions: Floats) -> Floats:
    """(K,): the derivative of each input of the stack by the member's score."""
    if rule.classes:
        rising, is_inside = rule.r[A], _is_inside(rule, members, _stack.MAX_INPUT)
    else:
        scale = _scale(rule)
        rising = _tangents(rule, members, predictions) / scale
        is_inside = np.abs(predictions - rule.g[_rule.MEAN]) < _stack._MOST_NUMBER * scale
    return np.where(is_inside, rule.r[IS_ACTIVE] * rising, 0.0)


def _is_inside(rule: Rule, members: Floats, most: float) -> Flags:
    """(K,): whether neither the score nor its log odds, limited to `most`, are clipped."""
    log_odds = rule.r[A] * members + rule.r[B]
    is_inside: Flags = (np.abs(members) < _rule.MAX_SCORE) & (np.abs(log_odds) < most)
    return is_inside


def _scale(rule: Rule) -> float:
    """The unit of the stack's inputs for numbers."""
    square = float(rule.g[_rule.SQUARE])
    return math.sqrt(square) if square > 0.0 else 1.0
