"""LightGBM on the columns that a model with late labels is served with."""

import json
import time
from typing import Any

import numpy as np

from dualstream.solvers import Batch, make_learner
from dualstream.solvers.estimators.flat_rows import FlatRows
from dualstream.solvers.jit import Floats
from load_tests.streams.late_stream import Spec, Stream
from load_tests.streams.retrained import lightgbm_trees

EVERY = 5_000
BITS = 18


def retrained_scores(stream: Stream, spec: Spec, delay_s: float) -> tuple[Floats, float]:
    """Scores of the later two thirds of the rows, 0 before; and CPU time of a row in us.

    A model is trained every 5,000 rows on all rows whose labels have come.
    """
    rows = dense(served_rows(stream, spec, delay_s))
    n, began = len(rows), time.process_time()
    scores = np.zeros(n)
    for start in range(n // 3 // EVERY * EVERY, n, EVERY):
        count = stream.count_until(float(stream.seconds[start]) - delay_s)
        predict = lightgbm_trees(
            rows[:count], stream.labels[:count].astype(np.float64), stream.objective
        )
        scores[start : start + EVERY] = predict(rows[start : start + EVERY])
    return scores, 1e6 * (time.process_time() - began) / n


def served_rows(stream: Stream, spec: Spec, delay_s: float) -> Batch:
    """The rows with the columns of their history at the time of their prediction."""
    history = spec.get("history")
    reader = FlatRows({"types": spec["columns"]["types"]}, [], BITS, history)
    rows = reader.batch([json.loads(text + "}") for text in stream.rows])
    if not history:
        return rows
    observed = reader.batch([json.loads(text) for text in stream.observed])
    learner: Any = make_learner(spec)
    stage, served, labelled = learner.history, [], 0
    for start, step in stream.steps():
        count = stream.count_until(start - delay_s)
        if count > labelled:
            stage.learn(observed[labelled:count])
            stage.learn(_with_labels(rows[labelled:count], stream.labels[labelled:count]))
            labelled = count
        served.append(stage.peek(rows[step.start : step.stop]))
        stage.learn(rows[step.start : step.stop])
    return Batch.concat(served)


def _with_labels(rows: Batch, labels: np.ndarray) -> Batch:
    """Rows with late labels, which the stage counts without entering the rows again."""
    count = len(rows)
    columns = rows.indptr, rows.indices, rows.values, labels.astype(np.float64), np.ones(count)
    return Batch(*columns, rows.dim, served=np.zeros(count))


def dense(rows: Batch) -> np.ndarray:
    """(n, d) of the columns that occur, NaN where a row has none."""
    used, column = np.unique(rows.indices, return_inverse=True)
    table = np.full((len(rows), len(used)), np.nan, np.float32)
    table[np.repeat(np.arange(len(rows)), np.diff(rows.indptr)), column] = rows.values
    return table
