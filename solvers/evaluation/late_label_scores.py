"""Late labels: rows are counted in the metrics with the scores that they were served with.

When a late label arrives the weights have changed, and their score of the row served no client.
Learning is unaffected: the step uses the current weights.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dualstream.solvers.jit import B1, F8, RO_F8, kernel
from dualstream.solvers.losses.loss_kernels import loss_value
from dualstream.solvers.losses.loss_table import Loss, make_loss
from dualstream.solvers.nonlinear import NONLINEAR
from dualstream.solvers.protocols.learner import Outcome
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.spec_cache import derived_once

_LARGEST_LOSS = 1e290  # of an absurd score: keeps sums finite


def why_not_as_served(spec: Mapping[str, Any]) -> str | None:
    """Why rows of a model of this resolved specification cannot be counted so; None if they can."""
    if spec["task"] == "multiclass":
        return "a multiclass prediction has more than one score"
    if spec["algorithm"] == "dc":
        return "the loss of dc is no function of the score alone"
    return None


class AsServed:
    """Puts served scores into the outcomes of one model.

    Loss: that of the specification; for a portfolio and the learners of solvers/nonlinear the
    log-loss, or half the squared error; hinge for others without a choice of loss.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._why_not = why_not_as_served(spec)
        self._binary = spec["task"] == "binary"
        self._numbers = _loss_of(spec).numbers

    def put(self, batch: Batch, outcome: Outcome) -> Outcome:
        """The outcome of learning the batch, with served scores where known.

        Rejected rows are unchanged. So are all rows if the specification does not support it: then
        the specification changed after the scores were served.
        """
        if batch.served is None or self._why_not is not None:
            return outcome
        scores, losses = outcome.scores.copy(), outcome.losses.copy()
        score_served(
            batch.served, batch.labels, self._numbers, self._binary, outcome.rejected,
            scores, losses,
        )  # fmt: skip
        return replace(outcome, scores=scores, losses=losses)


@derived_once
def as_served(spec: Mapping[str, Any]) -> AsServed:
    """The AsServed of models of a resolved specification."""
    return AsServed(spec)


def _loss_of(spec: Mapping[str, Any]) -> Loss:
    if spec["algorithm"] in ("portfolio", *NONLINEAR) and "loss" not in spec:
        return make_loss("squared" if spec["task"] == "regression" else "logistic")
    loss = spec.get("loss", "hinge")
    if isinstance(loss, str):
        return make_loss(loss)
    return make_loss(loss["kind"], next(value for name, value in loss.items() if name != "kind"))


@kernel
def score_served(
    served: RO_F8, labels: RO_F8, numbers: RO_F8, binary: bool, rejected: B1, scores: F8, losses: F8
) -> None:
    """Replace the scores and losses of learned rows by those of finite `served` scores.

    numbers (6,): see losses.Loss.numbers; labels of binary rows are positive or not
    """
    for i in range(served.shape[0]):
        if rejected[i] or not np.isfinite(served[i]):
            continue
        y = labels[i]
        if binary:
            y = 1.0 if y > 0.0 else -1.0
        loss = loss_value(
            served[i], y, numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]
        )
        scores[i] = served[i]
        losses[i] = loss if loss <= _LARGEST_LOSS else _LARGEST_LOSS  # False for NaN, too
