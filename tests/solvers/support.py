"""Batches of rows and states as bytes."""

import numpy as np

from dualstream.solvers import Batch, dump
from dualstream.solvers.rows.class_names import class_indices, class_text


def mixed_rows(n, seed=0):
    """Columns that are always, often or rarely present, constant, or change between these."""
    draw = np.random.default_rng(seed)
    shares = np.array([1.0, 0.8, 0.5, 0.3, 0.05, 0.02, 1.0, 0.5])
    x = draw.normal(2.0, [1, 3, 0.1, 5, 1, 1, 0, 1e-3], (n, 8))
    present = draw.random((n, 8)) < shares
    present[n // 3 :, 1] &= draw.random(n - n // 3) < 0.1
    present[: n // 2, 4] = True
    return Batch.from_dense(np.where(present, x, 0.0), np.sign(draw.normal(size=n)))


def as_bytes(state):
    return {name: np.asarray(array).tobytes() for name, array in state.items()}


def dense(batch):
    out = np.zeros((len(batch), batch.dim))
    out[np.repeat(np.arange(len(batch)), np.diff(batch.indptr)), batch.indices] = batch.values
    return out


def content(learner, *, counts=True):
    """A learner's state as bytes; optionally without its counts of rows of weight 0."""
    state = learner.state()
    if not counts:
        state = {name: a for name, a in state.items() if name.split(".")[-1] != "samples"}
    return dump(state, {})


def rescaled(batch, rows, factor):
    """The same batch with some rows `factor` times as long, clipped to 1e100."""
    values = batch.values.copy()
    for row in rows:
        entries = slice(batch.indptr[row], batch.indptr[row + 1])
        values[entries] = np.clip(values[entries] * factor, -1e100, 1e100)
    return Batch(batch.indptr, batch.indices, values, batch.labels, batch.weights, batch.dim)


def relabelled(batch, labels, weights=None):
    weights = batch.weights if weights is None else weights
    return Batch(batch.indptr, batch.indices, batch.values, labels, weights, batch.dim)


def class_rows(n=150, seed=0):
    """Rows of four classes; the third appears late, the fourth once."""
    batch = mixed_rows(n, seed)
    draw = np.random.default_rng(seed)
    labels = (draw.random(n) < 0.4).astype(float)
    labels[n // 2 :][draw.random(n - n // 2) < 0.3] = 2.0
    labels[n - 5] = 3.0
    names = ["red", "green", "blue", "rare"]
    positions, classes = class_indices([class_text(names[int(k)]) for k in labels])
    return batch.with_labels(positions, classes)


def outcome_bytes(outcome):
    names = ("scores", "losses", "updated", "rejected", "predicted", "log_losses")
    return [None if (a := getattr(outcome, n)) is None else a.tobytes() for n in names]
