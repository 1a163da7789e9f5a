"""Has the stream changed? Two detectors that watch the loss of each row, and what they found."""

from dualstream.solvers.evaluation.drift.monitor import DETECTORS, DriftEvent, DriftWatch

__all__ = ["DETECTORS", "DriftEvent", "DriftWatch"]
