"""Prediction intervals and sets: adaptive conformal inference on the residuals of a stream."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dualstream.solvers.evaluation.intervals.spec import levels_of
from dualstream.solvers.spec_fields import INTERVALS, SEGMENTS

if TYPE_CHECKING:
    from dualstream.solvers.evaluation.intervals.calibration import Calibration

__all__ = ["calibration_of", "levels_of"]


def calibration_of(spec: Mapping[str, Any]) -> "Calibration | None":
    """The calibration of a resolved specification, before the first row; None without intervals."""
    if INTERVALS not in spec:
        return None
    # Imported on demand, because importing compiles its kernels.
    module: Any = importlib.import_module("dualstream.solvers.evaluation.intervals.calibration")
    calibration: Calibration = module.Calibration(spec["task"], levels_of(spec), SEGMENTS in spec)
    return calibration
