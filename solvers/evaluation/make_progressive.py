"""Makes the progressive metrics of a specification."""

from collections.abc import Mapping
from typing import Any

from dualstream.solvers.evaluation.drift import DETECTORS
from dualstream.solvers.evaluation.progressive import Progressive
from dualstream.solvers.nonlinear import NONLINEAR


def make_progressive(spec: Mapping[str, Any]) -> Progressive:
    """Metrics for the learner of a resolved specification."""
    log_loss, scaled = scores_are_log_odds(spec), scaled_detectors(spec)
    if spec["task"] == "multiclass":
        # Imported on demand, because importing compiles its kernels.
        from dualstream.solvers.evaluation.class_progressive import ClassProgressive

        return ClassProgressive(log_loss=log_loss, scaled=scaled)
    is_ranked = spec["task"] == "binary"
    return Progressive(spec["task"], log_loss=log_loss, scaled=scaled, is_ranked=is_ranked)


def scaled_detectors(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The drift detectors of this resolved specification that divide losses by their mean.

    ADWIN adapts to the spread of losses of classes, which have no unit.
    """
    return DETECTORS if spec["task"] == "regression" else ("page_hinkley",)


def scores_are_log_odds(spec: Mapping[str, Any]) -> bool:
    """Whether the scores of a learner of this resolved specification give probabilities."""
    # The loss of these is no field: for classes it is logistic.
    has_fixed_loss = spec["algorithm"] in ("portfolio", *NONLINEAR)
    return spec["task"] != "regression" and (has_fixed_loss or spec.get("loss") == "logistic")
