"""Late labels of classes: the loss of a row by the scores of all classes as they were served."""

from dualstream.solvers.jit import RO_F8, RO_F8_2D, kernel
from dualstream.solvers.losses.loss_kernels import loss_at, loss_value
from dualstream.solvers.online.class_choice import LOG_LOSS_CAP, log_normaliser
from dualstream.solvers.rows.scalar import log1pexp


@kernel
def score_served_classes(scores: RO_F8_2D, label: int, numbers: RO_F8) -> tuple[float, float]:
    """Loss and log-loss of one row by the scores (K, 1) of its classes.

    label    index of the row's class; -1 for an unknown one
    numbers  (6,): see losses.Loss.numbers
    """
    total, n_classes = 0.0, scores.shape[0]
    for k in range(n_classes):
        y = 1.0 if k == label else -1.0
        total += loss_value(scores[k, 0], y, loss_at(numbers, 0))
    log_loss = LOG_LOSS_CAP
    if label < 0:
        total += loss_value(0.0, 1.0, loss_at(numbers, 0))
    else:
        loss = log1pexp(-scores[label, 0]) + log_normaliser(scores, 0, n_classes)
        log_loss = min(max(loss, 0.0), LOG_LOSS_CAP)
    return total, log_loss
