"""Prometheus families of pauses and trips."""

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from dualstream.service.features.guard.state import Guarding
from dualstream.service.metrics.families import Family, Put
from dualstream.service.replica.replica import Replica

FAMILIES = {
    "model_paused": Family(GaugeMetricFamily, "1 while the guard has paused learning, else 0."),
    "quarantined_records": Family(GaugeMetricFamily, "Records in quarantine."),
    "quarantined_bytes": Family(GaugeMetricFamily, "Bytes of the rows in quarantine."),
    "guard_trips": Family(CounterMetricFamily, "Trips of the guard, by quantity.", ("quantity",)),
}


def measure(replica: Replica, put: Put) -> None:
    """The values of FAMILIES."""
    guarding = replica.parts.find(Guarding)
    if guarding is None:
        return
    pauses = guarding.pauses
    put("model_paused", int(pauses.is_paused))
    put("quarantined_records", replica.seq - pauses.held_from if pauses.is_paused else 0)
    put("quarantined_bytes", pauses.held_bytes)
    for quantity, count in pauses.counts.items():
        put("guard_trips", count, quantity)
