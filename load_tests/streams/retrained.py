"""Batch models trained from scratch on past rows every 500 rows, as many teams do; LightGBM."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from dualstream.solvers import Batch
from dualstream.solvers.jit import Floats
from load_tests.paper_tables import data
from load_tests.streams.peers import WIDE, log_odds

EARLY = (50, 100, 200, 300)
EVERY = 500
TREES = 100
OPTIONS = {"verbose": -1, "num_threads": 1, "deterministic": True}

Predict = Callable[[Any], Floats]
Train = Callable[[Any, Floats], Predict]
"""From rows (n, d) and labels 0 or 1 (n,) to a function from rows to their log odds."""


def rolling(train: Train, window: int | None, batch: Batch) -> Iterator[Floats]:
    """Log odds of consecutive rows, one array for each model.

    A model is trained after rows 50, 100, 200 and 300 and then every 500 rows, on all rows so far
    or on the last `window`, and serves until the next one. Before row 51, and where these rows have
    one class, the share of positive labels is predicted.
    """
    rows, labels = columns(batch), (batch.labels > 0.0).astype(np.float64)
    count = len(batch)
    yield np.array([share(labels[:row]) for row in range(min(EARLY[0], count))])
    starts = [at for at in (*EARLY, *range(EVERY, count, EVERY)) if at < count]
    for start, end in zip(starts, [*starts[1:], count], strict=False):
        first = max(0, start - (window or count))
        past = labels[first:start]
        if past.min() == past.max():
            yield np.full(end - start, share(past))
        else:
            yield train(rows[first:start], past)(rows[start:end])


def columns(batch: Batch) -> Any:
    """The rows as a matrix, sparse if they are wide."""
    if batch.dim <= WIDE:
        return data.dense(batch)
    return csr_matrix((batch.values, batch.indices, batch.indptr), shape=(len(batch), batch.dim))


def share(labels: Floats) -> float:
    """Log odds of the share of positives; 0 without labels."""
    return log_odds(float(labels.mean())) if len(labels) else 0.0


def lightgbm_trees(rows: Any, labels: Floats, objective: str = "binary") -> Predict:
    """LightGBM with its defaults: 100 trees."""
    import lightgbm

    past = lightgbm.Dataset(rows, labels, params={"verbose": -1})
    model = lightgbm.train({**OPTIONS, "objective": objective}, past, TREES)
    return lambda later: np.asarray(model.predict(later, raw_score=True, num_threads=1))
