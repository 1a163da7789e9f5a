"""Late labels: rows are counted in the metrics with the scores that they were served with.

When a late label arrives the weights have changed, and their score of the row served no client.
Learning is unaffected: the step uses the current weights. A row that is learned again with another
label has counted already.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dualstream.solvers.jit import B1, F8, RO_F8, Floats, kernel
from dualstream.solvers.losses.loss_kernels import loss_at, loss_value
from dualstream.solvers.losses.loss_table import Loss, make_loss
from dualstream.solvers.nonlinear import NONLINEAR
from dualstream.solvers.protocols.learner import Outcome
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.spec_cache import derived_once

_LARGEST_LOSS = 1e290  # of an absurd score: keeps sums finite
MAX_SERVED_CLASSES = 100
"""Maximum number of classes whose scores are stored with a row that waits for its label."""


def why_not_as_served(spec: Mapping[str, Any]) -> str | None:
    """Why rows of a model of this resolved specification cannot be counted so; None if they can."""
    if spec["algorithm"] == "dc":
        return "the loss of dc is no function of the score alone"
    return None


def counted_once(batch: Batch, outcome: Outcome) -> Outcome:
    """The outcome for metrics: rows that are learned again with another label do not count."""
    if batch.replaced is None:
        return outcome
    return replace(outcome, rejected=outcome.rejected | ~np.isnan(batch.replaced))


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
        if batch.classes:
            return self._put_classes(batch, outcome)
        scores, losses = outcome.scores.copy(), outcome.losses.copy()
        score_served(
            batch.served, batch.labels, self._numbers, self._binary, outcome.rejected,
            scores, losses,
        )  # fmt: skip
        return replace(outcome, scores=scores, losses=losses)

    def _put_classes(self, batch: Batch, outcome: Outcome) -> Outcome:
        """As `put`. A row that was a mistake has no predicted class."""
        assert batch.served is not None
        if batch.served_parts is None or outcome.predicted is None:
            return outcome
        put = np.isfinite(batch.served) & ~outcome.rejected
        losses, log_losses, mistakes = batch.served_parts.T
        class_index = {name: index for index, name in enumerate(outcome.classes)}
        indices = np.array([class_index.get(name, -1) for name in batch.classes], np.int64)
        labels = indices[np.where(put, batch.labels, 0.0).astype(np.int64)]
        class_losses = outcome.class_losses
        if class_losses is not None:
            class_losses, rows = class_losses.copy(), np.flatnonzero(put & (labels >= 0))
            class_losses[rows, labels[rows]] = log_losses[rows]
        return replace(
            outcome,
            scores=np.where(put, batch.served, outcome.scores),
            losses=np.where(put, losses, outcome.losses),
            predicted=np.where(put, np.where(mistakes > 0.0, -1, labels), outcome.predicted),
            log_losses=None
            if outcome.log_losses is None
            else np.where(put, log_losses, outcome.log_losses),
            class_losses=class_losses,
        )

    def losses_of_classes(
        self, scores: Floats, classes: Sequence[str], best: int, label: str
    ) -> tuple[float, float, float]:
        """Loss, log-loss and mistake (1 or 0) of a row that was served with these class scores.

        The loss is the sum of the losses of all served classes. A class that was unknown then is a
        mistake of the largest log-loss; its own part of the loss is that of score 0.

        best  index of the predicted class; -1 for none
        """
        # Imported on demand, because importing compiles kernels that other tasks do not need.
        from dualstream.solvers.evaluation.late_class_scores import score_served_classes

        index = classes.index(label) if label in classes else -1
        loss, log_loss = score_served_classes(scores.reshape(-1, 1), index, self._numbers)
        loss = loss if loss <= _LARGEST_LOSS else _LARGEST_LOSS  # False for NaN, too
        return loss, log_loss, float(best < 0 or best != index)


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
        loss = loss_value(served[i], y, loss_at(numbers, 0))
        scores[i] = served[i]
        losses[i] = loss if loss <= _LARGEST_LOSS else _LARGEST_LOSS  # False for NaN, too
