"""`onnx` export: a graph from rows to scores and probabilities, in float64.

Input `x` (n, columns): one column per feature, in order. For a model with hashed features: only
those that its scores depend on, and before a norm those that its rows had, listed in the metadata
`indices` and `names`. Output `scores`, (n,)
or (n, classes), and `probabilities` of the same shape if the model has any.
"""

from contextlib import suppress

import msgspec
import numpy as np

from dualstream.solvers.errors import NotExpressible
from dualstream.solvers.export.onnx_graph_builder import Graph
from dualstream.solvers.export.onnx_scores import scores_of
from dualstream.solvers.export.source import Source
from dualstream.solvers.protocols.served_form import Form, Linear, Mixture, ScoreForm, columns_of

MAX_WEIGHTS = 1 << 24
"""Maximum of columns times sums of weights, each of which has one weight per column."""


def write(source: Source) -> bytes:
    """Raises NotExpressible."""
    columns = _columns(source)
    graph = Graph()
    scores = scores_of(graph, source.form, "x", columns)
    is_single = source.spec["task"] != "multiclass"
    shape: list[str | int] = ["n"] if is_single else ["n", len(scores)]
    if is_single:
        last = graph.constant([1], np.int64)
        table = graph.node("Squeeze", scores[0], last)
    else:
        table = graph.node("Concat", *scores, axis=1)
    graph.named("scores", table)
    outputs = {"scores": shape}
    if source.has_probabilities:
        graph.named("probabilities", _probabilities(graph, table, is_single))
        outputs["probabilities"] = shape
    about = {
        "model": source.model,
        "member": source.member or "",
        "seq": str(source.seq),
        "etag": source.etag,
        "task": source.spec["task"],
        "features": _text(source.spec["features"]),
        "classes": _text(list(source.classes)),
    }
    if len(columns) < source.form.dim:
        about["indices"] = _text((columns + 1).tolist())
    if source.is_hashed:
        about["names"] = _text(source.names(columns))
    return graph.write({"x": ["n", len(columns)]}, outputs, about)


def _columns(source: Source) -> np.ndarray:
    dim = source.form.dim
    columns = np.empty(0, np.int64)
    if source.is_hashed:
        with suppress(NotExpressible):
            used = columns_of(source.form, source.named)
            # A graph has at least one input.
            columns = used if len(used) else np.zeros(1, np.int64)
    width = len(columns) or dim
    # A portfolio of priors alone has no sum, and still an input for each feature.
    weights = width * max(1, _sums_in(source.form))
    if weights > MAX_WEIGHTS:
        detail = f"the graph would have {weights:,} weights, {MAX_WEIGHTS:,} at most"
        raise NotExpressible(f"its scores depend on {width:,} features, and {detail}")
    return columns if len(columns) else np.arange(dim)


def _sums_in(form: Form) -> int:
    return sum(_sums_in_score(score) for score in form.scores)


def _sums_in_score(score: ScoreForm) -> int:
    if isinstance(score, Mixture):
        return sum(_sums_in(part.form) for part in score.parts if part.form is not None)
    # Nonlinear scores first gather the columns that they read.
    return 1 if isinstance(score, Linear) else 0


def _probabilities(graph: Graph, scores: str, is_single: bool) -> str:
    if is_single:
        return graph.node("Sigmoid", scores)
    # sigmoid(s) / sum of them, in logarithms, because rounding may make all of them 0.
    size = graph.node("Exp", graph.node("Neg", graph.node("Abs", scores)))
    logs = graph.node(
        "Sub", graph.node("Min", scores, 0.0), graph.node("Log", graph.node("Add", size, 1.0))
    )
    return graph.node("Softmax", logs, axis=1)


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
