"""Every Prometheus family. What is told of a model comes from its replicated state."""

from dualstream.service.metrics.registry import Telemetry as Telemetry
