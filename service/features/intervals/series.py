"""Prometheus families of the coverage of intervals and sets, by level."""

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from dualstream.service.features.intervals.state import Intervals
from dualstream.service.metrics.families import Family, Put
from dualstream.service.replica.replica import Replica

_LEVEL = ("level",)
FAMILIES = {
    "interval_rows": Family(CounterMetricFamily, "Rows that had an interval or a set.", _LEVEL),
    "interval_rows_covered": Family(CounterMetricFamily, "Those that it covered.", _LEVEL),
    "interval_rows_unbounded": Family(CounterMetricFamily, "Those that it left open.", _LEVEL),
    "interval_recent_coverage": Family(
        GaugeMetricFamily, "Share of covered rows among the last 1,000.", _LEVEL
    ),
    "interval_mean_size": Family(
        GaugeMetricFamily, "Mean width of the intervals, or mean size of the sets.", _LEVEL
    ),
}


def measure(replica: Replica, put: Put) -> None:
    """The values of FAMILIES."""
    intervals = replica.parts.find(Intervals)
    if intervals is None:
        return
    for one in intervals.calibration.figures():
        level = str(one.level)
        put("interval_rows", one.rows, level)
        put("interval_rows_covered", one.covered, level)
        put("interval_rows_unbounded", one.unbounded, level)
        if one.recent_coverage is not None:
            put("interval_recent_coverage", one.recent_coverage, level)
        if one.mean_size is not None:
            put("interval_mean_size", one.mean_size, level)
