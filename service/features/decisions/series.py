"""Prometheus families of decisions: what they cost, and the alerts."""

from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from dualstream.service.features.decisions.state import decided_of
from dualstream.service.metrics.families import Family, Put
from dualstream.service.replica.replica import Replica

_DECISIONS = {
    "cost": "least_cost",
    "best_constant": "best_constant",
    "most_probable": "most_probable",
}
FAMILIES = {
    "decision_cost": Family(
        GaugeMetricFamily,
        "Cost a row in the last 1,000 labelled rows: of the decisions of least expected cost, of "
        "the best constant one, and of the most probable label.",
        ("decision",),
    ),
    "alert_threshold": Family(GaugeMetricFamily, "Scores above it alert; absent while none is."),
    "alert_rows": Family(CounterMetricFamily, "Rows that moved the threshold."),
    "alerts": Family(CounterMetricFamily, "Rows above the threshold when they moved it."),
    "alert_precision": Family(GaugeMetricFamily, "Positive rows among labelled alerts."),
    "alert_recall": Family(GaugeMetricFamily, "Alerts among positive labelled rows."),
    "alerts_a_day": Family(GaugeMetricFamily, "By the times of the last 100 alerts."),
}


def measure(replica: Replica, put: Put) -> None:
    """The values of FAMILIES."""
    part = decided_of(replica.parts)
    if part is None:
        return
    figures: dict[str, Any] = part.decisions.figures()
    if "costs" in figures:
        for name, decision in _DECISIONS.items():
            put("decision_cost", figures["costs"]["rolling"][name], decision)
    if "alerts" in figures:
        alerts = figures["alerts"]
        since_start = alerts["since_start"]
        put("alert_threshold", alerts["threshold"])
        put("alert_rows", since_start["rows"])
        put("alerts", since_start["alerts"])
        put("alert_precision", since_start["precision"])
        put("alert_recall", since_start["recall"])
        put("alerts_a_day", alerts["alerts_a_day"])
