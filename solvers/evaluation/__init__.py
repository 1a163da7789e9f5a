"""Progressive metrics, drift detection, guards."""
