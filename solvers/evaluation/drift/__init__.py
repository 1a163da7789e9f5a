"""Drift detection: ADWIN and Page-Hinkley watch the loss of each row."""

from dualstream.solvers.evaluation.drift.monitor import DETECTORS, DriftEvent, DriftWatch

__all__ = ["DETECTORS", "DriftEvent", "DriftWatch"]
