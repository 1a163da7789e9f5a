"""Metrics of the newest reference optimum."""

import time

from dualstream.service.features.certificate.reference_optimum import References
from dualstream.service.models.model import Model

FAMILIES = {
    "reference_lower_bound": "No weights have a smaller objective on the window's rows.",
    "reference_gap": "Objective of the served weights on these rows, minus the lower bound.",
    "regret": "Losses of the window's rows as served, minus their losses at its optimum.",
    "regret_rows": "Rows that the regret is summed over.",
    "reference_age_seconds": "Time since the reference shown was computed.",
}


def measure(model: Model) -> tuple[float, ...] | None:
    """The values of FAMILIES if this worker has computed a reference."""
    job = model.find_job(References)
    newest = None if job is None else job.newest
    if newest is None or not model.replica.leads_on_from(newest.position):
        return None
    age_s = time.monotonic() - newest.at
    return newest.lower, newest.gap, newest.regret, newest.regret_rows, age_s
