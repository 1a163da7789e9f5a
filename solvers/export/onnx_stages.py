"""ONNX nodes of feature stages: the same formulas, in the same order."""

from collections.abc import Callable

import numpy as np

from dualstream.solvers.export.onnx_graph_builder import Graph
from dualstream.solvers.protocols import served_form
from dualstream.solvers.rows.scalar import FIRST_DENSE_ROW, TINY

_ROUNDING = 1e-30
_LARGEST = float(np.finfo(np.float64).max)


def behind(
    graph: Graph, stage: served_form.StageForm, rows: str, columns: np.ndarray
) -> tuple[str, np.ndarray]:
    """Rows behind a stage, and the increasing indices of their features."""
    if isinstance(stage, served_form.BalancedForm):
        return balanced(graph, stage, rows, columns), columns
    if isinstance(stage, served_form.NormForm):
        return _normed(graph, stage, rows), columns
    if isinstance(stage, served_form.FourierForm):
        d = len(stage.beta)
        angles = graph.node("Add", graph.node("MatMul", rows, stage.nu), stage.beta)
        return graph.node("Mul", graph.node("Cos", angles), np.sqrt(2.0 / d)), np.arange(d)
    return _nystroem(graph, stage, rows), np.arange(len(stage.factor))


def _spread(values: np.ndarray, stage: served_form.BalancedForm, columns: np.ndarray) -> np.ndarray:
    """Values of a stage's columns at these columns; 0 for columns that the stage has not seen."""
    out = np.zeros(len(columns))
    if len(stage.columns):
        at = np.minimum(np.searchsorted(stage.columns, columns), len(stage.columns) - 1)
        is_column = stage.columns[at] == columns
        out[is_column] = values[at[is_column]]
    return out


def balanced(graph: Graph, stage: served_form.BalancedForm, rows: str, columns: np.ndarray) -> str:
    """features/scaling.py; a row counts itself, in its nonzero columns."""
    node = graph.node
    if len(columns) == 1:
        # ONNX Runtime rounds a constant of one number to float32 to see whether it is 0 or 1, and
        # may then leave out its node. An empty second column prevents that.
        pair = node("Concat", rows, graph.zeros(rows), axis=1)
        h = balanced(graph, stage, pair, np.append(columns, columns + 1))
        return node("Gather", h, graph.constant([0], np.int64), axis=1)
    count = _spread(stage.counts, stage, columns)
    c, t = count + 1.0, stage.rows + 1.0
    raised = (t / c) ** stage.power
    if not stage.moments:
        return node("Mul", rows, raised)
    mean = _spread(stage.means, stage, columns)
    m = _spread(stage.deviations, stage, columns)
    was_dense = _spread(stage.dense.astype(np.float64), stage, columns) > 0.0
    is_dense = (was_dense & (4.0 * c >= t)) | ((t >= FIRST_DENSE_ROW) & (2.0 * c >= t))

    is_zero = node("Equal", rows, 0.0)
    if stage.limits is not None:
        low, high = (
            np.where(count > 0.0, _spread(limit, stage, columns), other)
            for limit, other in zip(stage.limits, (-_LARGEST, _LARGEST), strict=True)
        )
        rows = node("Max", node("Min", rows, high), low)
    step = node("Sub", rows, mean)
    mu = node("Add", mean, node("Div", step, c))
    deviations = node("Add", m, node("Mul", step, node("Sub", rows, mu)))
    square = node("Add", node("Div", deviations, c), node("Mul", mu, mu))
    has_none = node("Less", square, TINY)
    h = node("Mul", _divided(node, rows, square, has_none), raised)
    if is_dense.any():
        share = c / t
        of_row = node("Div", deviations, t)
        of_mean = node("Mul", share, node("Mul", mu, mu))
        variance = node("Add", of_row, node("Mul", 1.0 - share, of_mean))
        rounding = node("Mul", node("Add", of_row, of_mean), _ROUNDING)
        is_constant = node(
            "Or", node("LessOrEqual", variance, rounding), node("Less", variance, TINY)
        )
        above = node("Sub", rows, node("Mul", mu, share))
        dense = _divided(node, above, variance, is_constant)
        h = node("Where", graph.constant(is_dense, np.bool_), dense, h)
    return node("Where", is_zero, _scaled_zero(count, mean, m, was_dense, t), h)


def _divided(node: Callable[..., str], above: str, square: str, is_none: str) -> str:
    """above / sqrt(square), 0 if that is not finite."""
    root = node("Sqrt", node("Where", is_none, 1.0, square))
    return node("Where", is_none, 0.0, node("Div", above, root))


def _scaled_zero(
    count: np.ndarray, mean: np.ndarray, m: np.ndarray, was_dense: np.ndarray, t: float
) -> np.ndarray:
    """The value of a 0: 0, except in dense columns, where it is its distance below their mean."""
    share = count / t
    of_mean = share * mean * mean
    variance = m / t + (1.0 - share) * of_mean
    is_constant = (variance <= _ROUNDING * (m / t + of_mean)) | (variance < TINY)
    stays = was_dense & (4.0 * count >= t) & ~is_constant
    root = np.sqrt(np.where(stays, variance, 1.0))
    return np.where(stays, -mean * share / root, 0.0)


def _normed(graph: Graph, stage: served_form.NormForm, rows: str) -> str:
    square = graph.squares(rows)
    if stage.running:
        square = graph.node("Div", graph.node("Sum", square, stage.squares), stage.rows + 1.0)
    is_none = graph.node("Equal", square, 0.0)
    size = graph.node("Where", is_none, 1.0, graph.node("Sqrt", square))
    return graph.node("Div", rows, size)


def _nystroem(graph: Graph, stage: served_form.NystroemForm, rows: str) -> str:
    node, landmarks = graph.node, stage.landmarks
    z = np.zeros((landmarks.dim, len(landmarks)))
    owners = np.repeat(np.arange(len(landmarks)), np.diff(landmarks.indptr))
    z[landmarks.indices, owners] = landmarks.values
    products = node("Mul", node("MatMul", rows, z), -2.0)
    distance = node("Add", node("Add", graph.squares(rows), np.sum(z * z, axis=0)), products)
    near = node("Exp", node("Mul", node("Max", distance, 0.0), -stage.gamma))
    return node("MatMul", near, _inverse(stage.factor).T)


def _inverse(factor: np.ndarray) -> np.ndarray:
    """Inverse of a lower triangular matrix, summed in a fixed order; BLAS has one for each
    machine.
    """
    inverse = np.zeros(factor.shape)
    for i in range(len(factor)):
        inverse[i, i] = 1.0 / factor[i, i]
        inverse[i, :i] = -np.einsum("j,jk->k", factor[i, :i], inverse[:i, :i]) * inverse[i, i]
    return inverse
