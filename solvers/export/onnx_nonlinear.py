"""ONNX nodes of the nonlinear scores of protocols/served_form.py.

Branches and ranks must not differ from the learner's by a rounding error. So trees compare float64
thresholds with values rounded to float32, as the learner does, and the distances of neighbours are
the same float32 sums, column by column.
"""

import math

import numpy as np
from onnx import TensorProto

from dualstream.solvers.export.onnx_graph_builder import Graph
from dualstream.solvers.export.onnx_stages import balanced
from dualstream.solvers.protocols.served_form import Curves, Neighbours, Net, NonlinearScore, Trees


def nonlinear_score(graph: Graph, score: NonlinearScore, rows: str, columns: np.ndarray) -> str:
    """The score (n, 1) of `rows` (n, columns); columns: increasing indices of these features."""
    if isinstance(score, Net):
        return _net(graph, score, rows, columns)
    if isinstance(score, Trees):
        return _trees(graph, score, rows, columns)
    if isinstance(score, Curves):
        return _curves(graph, score, rows, columns)
    return _neighbours(graph, score, rows, columns)


def _gathered(graph: Graph, rows: str, columns: np.ndarray, wanted: np.ndarray) -> str:
    """(n, wanted): these features, which are among `columns`, in this order."""
    positions = graph.constant(np.searchsorted(columns, wanted), np.int64)
    return graph.node("Gather", rows, positions, axis=1)


def _singles(
    graph: Graph, rows: str, columns: np.ndarray, wanted: np.ndarray, largest: float
) -> str:
    """(n, wanted) as `_gathered`, clipped and rounded to float32; float64 again."""
    near = graph.node("Clip", _gathered(graph, rows, columns, wanted), -largest, largest)
    return graph.node("Cast", graph.node("Cast", near, to=TensorProto.FLOAT), to=TensorProto.DOUBLE)


def _trees(graph: Graph, score: Trees, rows: str, columns: np.ndarray) -> str:
    """Goes down all trees at once, a level in each step. A leaf is its own left child.

    The operator TreeEnsemble is not used: before opset 5 it adds in float32, and ONNX Runtime 1.21
    to 1.23 score opset 5 wrong.
    """
    node, is_split = graph.node, score.feature >= 0
    used, positions = np.unique(score.feature[is_split], return_inverse=True)
    if not len(used):
        return node("Add", graph.zeros(rows), score.base + math.fsum(score.value[:, 0]))
    nodes = np.arange(score.feature.size).reshape(score.feature.shape)
    features = np.zeros_like(nodes)
    features[is_split] = positions
    lefts = np.where(is_split, score.left + nodes[:, :1], nodes)
    of_feature = graph.constant(features.ravel(), np.int64)
    of_left = graph.constant(lefts.ravel(), np.int64)
    of_threshold = graph.constant(np.where(is_split, score.threshold, np.inf).ravel())
    x = _singles(graph, rows, columns, score.columns[used], score.largest)
    start = node("Cast", graph.zeros(rows), to=TensorProto.INT64)
    at = node("Add", start, graph.constant(nodes[:, 0], np.int64))
    for _ in range(_depth(score)):
        value = node("GatherElements", x, node("Gather", of_feature, at), axis=1)
        is_right = node("Greater", value, node("Gather", of_threshold, at))
        at = node("Add", node("Gather", of_left, at), node("Cast", is_right, to=TensorProto.INT64))
    leaves = node("Gather", graph.constant(score.value.ravel()), at)
    return node("Add", graph.sums(leaves), score.base)


def _depth(score: Trees) -> int:
    """Splits on the longest way from a root to a leaf."""
    depth = np.zeros(score.feature.shape, np.int64)
    # Children come after their node.
    for at in range(score.feature.shape[1]):
        (trees,) = np.nonzero(score.feature[:, at] >= 0)
        left = score.left[trees, at]
        depth[trees, left] = depth[trees, left + 1] = depth[trees, at] + 1
    return int(depth.max())


def _curves(graph: Graph, score: Curves, rows: str, columns: np.ndarray) -> str:
    """The height of the first knot, and for each segment its rise times the part that x is in."""
    node, used = graph.node, np.flatnonzero(score.n_knots > 0)
    base = score.base + math.fsum(score.heights[used, :1].ravel())
    owner, at = np.nonzero(np.arange(1, score.knots.shape[1]) < score.n_knots[:, None])
    if not len(owner):
        return node("Add", graph.zeros(rows), base)
    low, rises = score.knots[owner, at], np.diff(score.heights)[owner, at]
    x = _singles(graph, rows, columns, score.columns[owner], score.largest)
    part = node("Div", node("Sub", x, low), score.knots[owner, at + 1] - low)
    part = node("Clip", part, 0.0, 1.0)
    return node("Add", node("MatMul", part, rises[:, None]), base)


def _neighbours(graph: Graph, score: Neighbours, rows: str, columns: np.ndarray) -> str:
    node = graph.node
    if not score.neighbours:
        return graph.zeros(rows)
    x = _singles(graph, rows, columns, score.columns, score.largest)
    units = node("Div", node("Sub", x, score.means), score.deviations)
    near = node("Clip", units, -score.reach, score.reach)
    z = node("Cast", near, to=TensorProto.FLOAT)
    n = len(score.labels)
    start = node("Cast", graph.zeros(rows), to=TensorProto.FLOAT)
    distances = node("Add", start, graph.constant(np.zeros((1, n)), np.float32))
    for column, values in enumerate(score.rows):
        gathered = node("Gather", z, graph.constant([column], np.int64), axis=1)
        apart = node("Sub", gathered, graph.constant(values[None, :], np.float32))
        distances = node("Add", distances, node("Mul", apart, apart))
    least, nearest = graph.smallest(distances, score.neighbours)
    d = node("Cast", least, to=TensorProto.DOUBLE)
    last = graph.constant([score.neighbours - 1], np.int64)
    width = node("Add", node("Gather", d, last, axis=1), 1e-9)
    decay = node("Exp", node("Div", node("Mul", d, -score.sharpness), width))
    share = node("Mul", node("Gather", graph.constant(score.weights), nearest), decay)

    def total(of_row: np.ndarray) -> str:
        """(n, 1): the sum over the nearest rows, each by its share."""
        gathered = node("Gather", graph.constant(of_row), nearest)
        return graph.sums(node("Mul", share, gathered))

    if score.start is not None:
        is_positive = (score.labels > 0.0).astype(np.float64)
        positive, negative = total(is_positive), total(1.0 - is_positive)
        above, below = (node("Add", one, score.start) for one in (positive, negative))
        return node("Log", node("Div", above, below))
    shares = graph.sums(share)
    has_share = node("Greater", shares, 0.0)
    below = node("Where", has_share, shares, 1.0)
    return node("Where", has_share, node("Div", total(score.labels), below), score.mean)


def _net(graph: Graph, score: Net, rows: str, columns: np.ndarray) -> str:
    node, wanted = graph.node, score.scaling.columns
    if len(wanted):
        h = balanced(graph, score.scaling, _gathered(graph, rows, columns, wanted), wanted)
        h = node("Clip", h, -score.reach, score.reach)
        z = node("Add", node("MatMul", h, score.first), score.first_bias)
    else:
        z = node("Add", graph.zeros(rows), score.first_bias)
    z = node("Max", z, 0.0)
    q = node("Add", node("MatMul", z, score.second), score.second_bias)
    q = node("Max", q, 0.0)
    # ONNX Runtime fuses a product with a Mul after it, by a factor that it rounds to float32.
    out = node("MatMul", q, score.scale * score.out[:, None])
    return node("Add", out, score.scale * score.out_bias + score.shift)
