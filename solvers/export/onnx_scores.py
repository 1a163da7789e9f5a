"""ONNX nodes of scores: sums of weights, and mixtures of members."""

from collections.abc import Sequence

import numpy as np

from dualstream.solvers.export.onnx_graph_builder import Graph
from dualstream.solvers.export.onnx_nonlinear import nonlinear_score
from dualstream.solvers.export.onnx_stages import behind
from dualstream.solvers.protocols import served_form


def scores_of(graph: Graph, form: served_form.Form, rows: str, columns: np.ndarray) -> list[str]:
    """Each score (n, 1) of `rows` (n, columns); columns: increasing indices of these features."""
    for stage in form.stages:
        rows, columns = behind(graph, stage, rows, columns)
    return [_score(graph, score, rows, columns) for score in form.scores]


def _score(graph: Graph, score: served_form.ScoreForm, rows: str, columns: np.ndarray) -> str:
    if isinstance(score, served_form.Mixture):
        return _mixture(graph, score, rows, columns)
    if not isinstance(score, served_form.Linear):
        return nonlinear_score(graph, score, rows, columns)
    weights = np.zeros((len(columns), 1))
    # Components of a map beyond its rank are always 0, whatever their weights.
    has_column = score.places <= (columns[-1] if len(columns) else -1)
    weights[np.searchsorted(columns, score.places[has_column]), 0] = score.weights[has_column]
    return graph.node("Add", graph.node("MatMul", rows, weights), score.intercept)


def _mixture(graph: Graph, score: served_form.Mixture, rows: str, columns: np.ndarray) -> str:
    node = graph.node
    inputs, outputs = [], []
    for part in score.parts:
        if part.form is not None:
            (m,) = scores_of(graph, part.form, rows, columns)
        else:
            m = graph.zeros(rows)
        inputs.append(_input(graph, score, m, part.a, part.b))
        outputs.append(_output(graph, score, inputs[-1]))
    shares = [part.share for part in score.parts]
    if score.stack is not None:
        m = _stacked(graph, score.stack, inputs, rows)
        if isinstance(score, served_form.NumberMixture):
            m = node("Add", m, score.mean)
        outputs.append(_output(graph, score, _input(graph, score, m, score.stack.a, score.stack.b)))
        shares.append(score.stack.share)
    total = _weighted(graph, outputs, shares)
    if isinstance(score, served_form.NumberMixture):
        return node("Add", total, score.mean)
    is_half = node("Less", node("Abs", node("Sub", total, 0.5)), 1e-12)
    p = node("Where", is_half, 0.5, total)
    return node("Log", node("Div", p, node("Sub", 1.0, p)))


def _input(graph: Graph, score: served_form.Mixture, m: str, a: float, b: float) -> str:
    """Log odds of the score m of a part; for numbers the distance of its prediction from the
    mean."""
    if isinstance(score, served_form.ClassMixture):
        m = graph.node("Clip", m, -score.largest_score, score.largest_score)
        return graph.node("Add", graph.node("Mul", m, a), b)
    calibrated = graph.node("Clip", graph.node("Add", m, b), score.low, score.high)
    return graph.node("Sub", calibrated, score.mean)


def _output(graph: Graph, score: served_form.Mixture, value: str) -> str:
    """What a mixture adds up of a part, given its `_input`."""
    if isinstance(score, served_form.NumberMixture):
        return value
    most = score.largest_log_odds
    return graph.node("Sigmoid", graph.node("Clip", value, -most, most))


def _stacked(graph: Graph, stack: served_form.Stack, inputs: list[str], rows: str) -> str:
    """The score of a stack, given the `_input` of each part."""
    node, most = graph.node, stack.largest_input
    if not inputs:
        return node("Add", graph.zeros(rows), stack.intercept)
    limited = [node("Clip", one, -most, most) for one in inputs]
    return node("Add", _weighted(graph, limited, stack.weights), stack.intercept)


def _weighted(graph: Graph, values: list[str], weights: Sequence[float]) -> str:
    """(n, 1): the sum of weight times value.

    A product of matrices, as ONNX Runtime leaves out a Mul by a number that is 1 in float32.
    """
    table = graph.node("Concat", *values, axis=1)
    return graph.node("MatMul", table, np.array(weights)[:, None])
