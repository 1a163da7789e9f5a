"""What a server reports of itself: log lines and traces. Metrics are in service/metrics.

logs.py     one formatter for all lines, in text or JSON, with request id and model
tracing.py  OpenTelemetry spans of requests, from the extra `[otel]`
"""
