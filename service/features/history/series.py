"""Prometheus families of histories, by group."""

from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from dualstream.service.metrics.families import Family, Put
from dualstream.service.replica.replica import Replica
from dualstream.solvers.history.spec import group_names

_GROUP = ("group",)
FAMILIES = {
    "history_keys": Family(GaugeMetricFamily, "Keys in the table of a group.", _GROUP),
    "history_evicted_keys": Family(
        CounterMetricFamily, "Keys that gave way to others, least recently used first.", _GROUP
    ),
    "history_late_rows": Family(
        CounterMetricFamily, "Rows older than the newest row of their key.", _GROUP
    ),
    "history_lost_labels": Family(
        CounterMetricFamily, "Late labels whose key had been evicted.", _GROUP
    ),
    "observed_rows": Family(
        CounterMetricFamily, "Rows without a label that have entered a history.", ()
    ),
}


def measure(replica: Replica, put: Put) -> None:
    """The values of FAMILIES."""
    groups = replica.spec.get("history")
    if not groups:
        return
    learner: Any = replica.learner
    put("observed_rows", learner.observed)
    for name, counts in zip(group_names(groups), learner.history.counts, strict=True):
        put("history_keys", counts["keys"], name)
        put("history_evicted_keys", counts["evicted"], name)
        put("history_late_rows", counts["late"], name)
        put("history_lost_labels", counts["lost_labels"], name)
