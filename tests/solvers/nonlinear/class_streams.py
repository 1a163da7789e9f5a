"""Streams of several classes that no linear model separates."""

import numpy as np

from dualstream.solvers import Batch
from dualstream.solvers.rows.class_names import class_indices, class_text
from tests.solvers.nonlinear.streams import learner_of


def clusters(n, classes, dim=3, seed=0, late=0, is_rounded=False, weights=None):
    """A batch and its rows (n, dim): three clusters for each class; the last third of the classes
    does not occur before row `late`.
    """
    rng = np.random.default_rng(seed)
    centres = 2.0 * rng.normal(size=(3 * classes, dim))
    mine = rng.integers(0, 3 * classes, n)
    mine[:late] = rng.integers(0, 3, late) * classes + rng.integers(0, 1 + 2 * classes // 3, late)
    x = centres[mine] + 0.3 * rng.normal(size=(n, dim))
    if is_rounded:
        x = np.round(x)
    labels, names = class_indices([class_text(int(k)) for k in mine % classes])
    return Batch.from_dense(x, labels, weights).with_labels(labels, names), x


def texts_of(batch):
    return [batch.classes[int(label)] for label in batch.labels]


def learner_of_classes(dim, **spec):
    return learner_of(dim, task="multiclass", **spec)


def wrong_rows(learner, batch):
    """Which rows get another class, before they are learned."""
    out = learner.learn(batch)
    results = [out.classes[k] if k >= 0 else None for k in out.predicted]
    return np.array([a != b for a, b in zip(results, texts_of(batch), strict=True)])
