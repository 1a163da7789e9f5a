"""Every Prometheus family. What is told of a model comes from its replicated state."""

from service.telemetry.telemetry import Telemetry as Telemetry
