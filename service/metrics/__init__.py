"""Prometheus metrics. Series of a model are read from its replicated state."""

from dualstream.service.metrics.scrape import Telemetry as Telemetry
