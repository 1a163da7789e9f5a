"""The class of a row by the scores of all classes: kernels, and the results for n rows."""

import math
from dataclasses import dataclass

import numpy as np

from dualstream.solvers.errors import InvalidRow
from dualstream.solvers.jit import F8, F8_2D, I8, RO_F8_2D, RO_I8, Floats, Ints, kernel
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.scalar import log1pexp

LOG_LOSS_CAP = -math.log(1e-15)
"""The log-loss of a class that was not known, and the maximum for a known one."""


@dataclass(frozen=True, slots=True)
class ClassScores:
    """Results for n rows and K classes."""

    classes: tuple[str, ...]
    """(K,), in order of first appearance."""
    scores: Floats
    """(n, K)"""
    best: Ints
    """(n,): an index into `classes`; -1 if there are no classes yet."""
    probabilities: Floats | None
    """(n, K), each row with sum 1; None if the learner gives none."""


def check_classes(batch: Batch) -> None:
    """Raise InvalidRow for a row without a class."""
    missing = np.isnan(batch.labels) if batch.classes else np.ones(len(batch), np.bool_)
    if missing.any():
        raise InvalidRow(int(np.argmax(missing)), "the label must be a class")


@kernel(inner=True)
def log_normaliser(scores: RO_F8_2D, row: int, n_classes: int) -> float:
    """log of the sum of sigmoid(scores[k, row]) over the first `n_classes` >= 1 classes."""
    top = -log1pexp(-scores[0, row])
    for k in range(1, n_classes):
        top = max(top, -log1pexp(-scores[k, row]))
    total = 0.0
    for k in range(n_classes):
        total += math.exp(-log1pexp(-scores[k, row]) - top)
    return top + math.log(total)


@kernel
def choose_classes(
    scores: RO_F8_2D, n_classes: RO_I8, class_ids: RO_I8, best: I8, best_scores: F8, log_losses: F8
) -> None:
    """The best class of each row, its score, and the log-loss of the row's own class.

    scores  (K, n)   known  (n,) number of classes that were known before the row
    class_ids  (n,)     the row's class; unknown if it is -1 or not below `n_classes`
    """
    for i in range(n_classes.shape[0]):
        best[i] = -1
        best_scores[i] = 0.0
        for k in range(n_classes[i]):
            if best[i] < 0 or scores[k, i] > best_scores[i]:
                best[i], best_scores[i] = k, scores[k, i]
        log_losses[i] = LOG_LOSS_CAP
        if 0 <= class_ids[i] < n_classes[i]:
            loss = log1pexp(-scores[class_ids[i], i]) + log_normaliser(scores, i, n_classes[i])
            log_losses[i] = min(max(loss, 0.0), LOG_LOSS_CAP)


@kernel
def put_class_losses(scores: RO_F8_2D, n_classes: RO_I8, out: F8_2D) -> None:
    """out (n, K): -log of sigmoid(scores[k, i]) over its sum over the first `n_classes[i]` classes;
    NaN of the others."""
    for i in range(out.shape[0]):
        out[i] = np.nan
        if n_classes[i] > 0:
            normaliser = log_normaliser(scores, i, n_classes[i])
            for k in range(n_classes[i]):
                loss = log1pexp(-scores[k, i]) + normaliser
                out[i, k] = min(max(loss, 0.0), LOG_LOSS_CAP)


@kernel
def normalised_sigmoids(scores: RO_F8_2D, out: F8_2D) -> None:
    """out (n, K): sigmoid of the scores (n, K), divided by its sum over each row."""
    for i in range(scores.shape[0]):
        top = -np.inf
        for k in range(scores.shape[1]):
            out[i, k] = -log1pexp(-scores[i, k])
            top = max(top, out[i, k])
        total = 0.0
        for k in range(scores.shape[1]):
            out[i, k] = math.exp(out[i, k] - top)
            total += out[i, k]
        for k in range(scores.shape[1]):
            out[i, k] /= total
