"""Prometheus families of the segments of models, for servers with METRICS_SEGMENTS."""

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from dualstream.service.features.segments.state import Segmented
from dualstream.service.metrics.families import Family, Put
from dualstream.service.replica.replica import Replica

VALUES_PER_COLUMN = 20
"""Values of a column that have series: the first ones. Those of the others are summed."""

_LABELS = ("column", "segment")
FAMILIES = {
    "segment_rows": Family(CounterMetricFamily, "Learned rows of a segment.", _LABELS),
    "segment_errors": Family(
        CounterMetricFamily,
        "Mistakes in the rows of a segment; of a regression the sum of absolute errors.",
        _LABELS,
    ),
    "segment_log_loss": Family(
        CounterMetricFamily, "Sum of the log-losses of the rows of a segment.", _LABELS
    ),
    "segment_predictions": Family(
        GaugeMetricFamily,
        "Sum of the predicted probabilities of a segment; of a regression of the predictions.",
        _LABELS,
    ),
    "segment_labels": Family(
        GaugeMetricFamily,
        "Positives in the rows of a segment; of a regression the sum of the labels.",
        _LABELS,
    ),
    "segment_coverage": Family(
        GaugeMetricFamily,
        "Share of the rows of a segment whose interval or set had the label.",
        (*_LABELS, "level"),
    ),
    "segment_alert_ratio": Family(
        GaugeMetricFamily, "Share of the rows of a segment that alerted.", _LABELS
    ),
}
_SUMS = tuple(FAMILIES)[:5]


def measure(replica: Replica, put: Put) -> None:
    """The values of FAMILIES."""
    part = replica.parts.find(Segmented)
    if part is None:
        return
    for column in part.sums.columns:
        for segment, totals in part.sums.totals(column, VALUES_PER_COLUMN).items():
            for name, value in zip(_SUMS, totals.sums, strict=True):
                put(name, value, column, segment)
            for level, coverage in totals.coverage.items():
                put("segment_coverage", coverage, column, segment, level)
            put("segment_alert_ratio", totals.alert_rate, column, segment)
