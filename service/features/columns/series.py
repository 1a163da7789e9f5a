"""Prometheus family of the drift of columns."""

from prometheus_client.core import GaugeMetricFamily

from dualstream.service.features.columns.profile import Profile
from dualstream.service.metrics.families import Family, Put
from dualstream.service.replica.replica import Replica
from dualstream.solvers.profile import MODERATE

COLUMNS_PER_MODEL = 10
"""Columns of a model that have a series. Columns that did not move have none: a scrape stays small,
and its series do not change with noise."""

FAMILIES = {
    "column_drift": Family(
        GaugeMetricFamily,
        f"Population stability index of the columns that moved most, at most {COLUMNS_PER_MODEL} "
        f"of a model, from {MODERATE} on.",
        ("column",),
    )
}


def measure(replica: Replica, put: Put) -> None:
    """The values of FAMILIES."""
    profile = replica.parts.find(Profile)
    assert profile is not None
    for column, index in profile.columns.drifts(replica.names.are_full)[:COLUMNS_PER_MODEL]:
        put("column_drift", index if index >= MODERATE else None, column)
