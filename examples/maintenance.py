"""Predictive maintenance: which pumps will fail within two days?

Every four hours each pump sends its vibration, temperature, current and load. Vibration has another
level on each pump, and rises with the load. A pump wears for days before it fails, and is then
repaired. `history` with the pump as its key gives the model the pump's own past. Whether a row was
followed by a failure is known two days later, so each row waits for its label. With `alert_rate`
the server says which rows alert, so that the work stays within what the team can do. The baselines
are the same model without history, and alerts by vibration alone.

  python -m examples.maintenance                   generated rows
  python -m examples.maintenance --data pumps.csv  columns row (an id), at (ISO 8601), pump,
      vibration, temperature, current, load and fails (0 or 1, within two days)
"""

import argparse
import random
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import count, islice

from rich.console import Console

from dualstream.client import Client
from examples.common import (
    POINTS,
    Reports,
    Result,
    Row,
    alerts,
    blocks,
    connected,
    records,
    show,
    start,
    taken,
    without,
)
from examples.pictures import Chart
from examples.ranking import average_precision

MODEL, PLAIN = "maintenance", "maintenance-without-history"
LABEL = "fails"
DELAY = timedelta(days=2)
ALERT_RATE = 0.05
SENSORS = ("vibration", "temperature", "current", "load")
SPEC = {
    "columns": {
        "label": LABEL,
        "id": "row",
        # The pump is the key of the history, and no feature: a repaired pump is another one.
        "types": {"at": "time", "pump": "ignore"} | dict.fromkeys(SENSORS, "number"),
        "missing": ["", "NaN", None],
    },
    "alert_rate": ALERT_RATE,
}
HISTORY = [
    {
        "by": "pump",
        "time": "at",
        "of": name,
        "stats": ["difference", "deviation"],
        "half_life": ["12h", "2d", "10d"],
    }
    for name in ("vibration", "temperature")
]
FIRST = datetime(2024, 2, 1)
STEP = timedelta(hours=4)
PUMPS = 40
SILENT = 0.02
"""Share of the readings of a sensor that are missing."""

read = records(times=["at"], numbers=[LABEL], others=["row", "pump", *SENSORS])


def made(rows: int, seed: int) -> Iterator[Row]:
    """Generated rows of 40 pumps, every four hours; about one in twelve precedes a failure."""
    return islice(_rows(random.Random(seed)), rows)


def _rows(draw: random.Random) -> Iterator[Row]:
    numbers = count(1)
    level = [draw.uniform(1.0, 6.0) for _ in range(PUMPS)]
    warmth = [draw.uniform(45.0, 70.0) for _ in range(PUMPS)]
    # Steps until the failure of each pump, and for how many steps before it the pump wears.
    left = [draw.randrange(0, 160) for _ in range(PUMPS)]
    wearing = [draw.randrange(18, 48) for _ in range(PUMPS)]
    within = DELAY // STEP
    for step in count():
        at = FIRST + step * STEP
        for pump in range(PUMPS):
            if left[pump] == 0:
                left[pump], wearing[pump] = draw.randrange(60, 260), draw.randrange(18, 48)
                level[pump] = draw.uniform(1.0, 6.0)
            wear = max(0.0, 1.0 - left[pump] / wearing[pump])
            load = draw.uniform(0.3, 1.0) * (1.0 if 6 <= at.hour < 20 else 0.6)
            vibration = level[pump] * (1.0 + 0.4 * load) + 1.6 * wear + draw.gauss(0.0, 0.35)
            readings = {
                "vibration": vibration,
                "temperature": warmth[pump] + 8.0 * load + 5.0 * wear**2 + draw.gauss(0.0, 1.5),
                "current": 10.0 * load + 0.3 * wear + draw.gauss(0.0, 0.4),
                "load": load,
            }
            sent = {
                name: "" if draw.random() < SILENT else round(value, 3)
                for name, value in readings.items()
            }
            yield {
                "row": f"r{next(numbers)}",
                "at": at,
                "pump": f"p{pump}",
                **sent,
                LABEL: int(0 < left[pump] <= within),
            }
            left[pump] -= 1


class Workshop:
    """Sends readings to two models, and each label when its two days are over."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: deque[Row] = deque()
        self.scores: dict[str, list[float]] = {MODEL: [], PLAIN: []}
        self.alerts: list[bool] = []

    def take(self, rows: Sequence[Row]) -> None:
        self._send_labels(rows[0]["at"] - DELAY)
        ids = [row["row"] for row in rows]
        for model in (MODEL, PLAIN):
            served = self._client.predict_and_remember(model, without(rows, "row", LABEL), ids)
            self.scores[model] += [score or 0.0 for score in served.scores]
            if model == MODEL:
                self.alerts += alerts(served)
        self._waiting.extend(rows)

    def _send_labels(self, until: datetime) -> None:
        labels: dict[str | int, int] = {}
        while self._waiting and self._waiting[0]["at"] <= until:
            row = self._waiting.popleft()
            labels[row["row"]] = row[LABEL]
        if labels:
            for model in (MODEL, PLAIN):
                self._client.learn_labels(model, labels)


def run(options: argparse.Namespace, console: Console) -> Result:
    rows = taken(options, read, made)
    share = sum(row[LABEL] for row in rows) / len(rows)
    pumps = len({row["pump"] for row in rows})
    show(
        console,
        f"{len(rows):,} rows of {pumps} pumps, {options.data or 'generated'}; {share:.1%} precede "
        f"a failure by at most {DELAY.days} days",
    )
    chart = Chart("Predictive maintenance", "rows", "average precision, last 1,000")
    points, reports = Reports(len(rows), POINTS), Reports(len(rows))
    with connected(options.url, console) as client:
        client.create(MODEL, SPEC | {"history": HISTORY}, replace=True)
        client.create(PLAIN, SPEC, replace=True)
        workshop = Workshop(client)
        show(console, "\nAverage precision of the last 1,000 labelled rows, as served:")
        show(console, "    rows   labels   with history   without")
        for done, block in enumerate(blocks(rows, PUMPS), 1):
            workshop.take(block)
            sent = min(done * PUMPS, len(rows))
            if not points.is_due(sent):
                continue
            rolling = [client.metrics(model)["rolling"] for model in (MODEL, PLAIN)]
            precisions = [one["average_precision"] for one in rolling]
            if None not in precisions:
                chart.add(sent, Dualstream=precisions[0], without_history=precisions[1])
            if reports.is_due(sent):
                cells = ["-" if one is None else f"{one:.3f}" for one in precisions]
                labels = client.metrics(MODEL)["samples"]
                show(console, f"{sent:8,} {labels:8,} {cells[0]:>14} {cells[1]:>9}")
    half = len(rows) // 2
    _announced(console, rows[half:], workshop.alerts[half:])
    late, truth = rows[half:], [bool(row[LABEL]) for row in rows[half:]]
    vibration = [float(row["vibration"] or 0.0) for row in late]
    return Result(
        "Average precision in the second half",
        average_precision(workshop.scores[MODEL][half:], truth),
        {
            "without history": average_precision(workshop.scores[PLAIN][half:], truth),
            "vibration alone": average_precision(vibration, truth),
        },
        chart,
        is_error=False,
    )


def _announced(console: Console, rows: Sequence[Row], alarms: Sequence[bool]) -> None:
    """Failures that an alert preceded, and alerts that no failure followed."""
    first_alert: dict[str, datetime] = {}
    was_failing: dict[str, datetime] = {}
    hours: list[float] = []
    failures = 0
    for row, is_alert in zip(rows, alarms, strict=True):
        pump, at = row["pump"], row["at"]
        if row[LABEL]:
            if is_alert:
                first_alert.setdefault(pump, at)
            was_failing[pump] = at
        elif pump in was_failing:
            failures += 1
            if pump in first_alert:
                hours.append((was_failing[pump] - first_alert[pump] + STEP) / timedelta(hours=1))
            first_alert.pop(pump, None)
            del was_failing[pump]
    right = sum(bool(row[LABEL]) for row, alert in zip(rows, alarms, strict=True) if alert)
    show(
        console,
        f"\nSecond half: {sum(alarms):,} of {len(rows):,} rows alerted (rate {ALERT_RATE:.0%}); "
        f"{right / max(sum(alarms), 1):.0%} of the alerts were right.",
        f"{len(hours)} of {failures} failures were announced, "
        f"{sum(hours) / max(len(hours), 1):.0f} hours before on average.",
    )


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> Result:
    return start(__doc__ or "", 9_600, run, arguments, console)


if __name__ == "__main__":
    main()
