"""Drift detection: ADWIN and Page-Hinkley watch the loss of each row."""

from dualstream.solvers.evaluation.drift.monitor import DETECTORS, DriftWatch

__all__ = ["DETECTORS", "DriftWatch"]
