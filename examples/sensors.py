"""Power consumption of a house: regression on sensors, one of which fails.

A row is ten minutes: the time, temperature and humidity of each room, the weather, and the energy
that the appliances used in the previous ten minutes. The label is the energy used now, in Wh. The
rows are CSV, with `NA` or an empty field where a sensor was silent, and are sent as they are.

  python -m examples.sensors                                generated rows
  python -m examples.sensors --data energydata_complete.csv  UCI's Appliances Energy Prediction:
      columns date, Appliances, lights, T1, RH_1, ..., Tdewpoint; rv1 and rv2, noise, are ignored
"""

import argparse
import csv
import io
import math
import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from rich.console import Console

from dualstream.client import Client, RowFile, kind_of
from examples.common import (
    Row,
    connected,
    errors,
    flags,
    learn,
    ratio,
    show,
    show_drift,
    show_shares,
    table,
    taken,
)

MODEL, PLAIN = "sensors", "sensors-without-history"
TARGET, BEFORE = "Appliances", "Appliances_before"
SPEC = {
    "task": "regression",
    "columns": {
        "label": TARGET,
        "ignore": ["rv*"],
        "types": {
            "date": {"kind": "time", "parts": ["hour", "weekday"]},
            BEFORE: "number",
            "T1": "number",
            "RH_1": "number",
        },
        "missing": ["", "NA"],
    },
}
HISTORY = [
    {"of": BEFORE, "time": "date", "stats": ["last", "change", "mean"], "half_life": ["1h", "1d"]},
    {"of": "T1", "time": "date", "stats": ["last", "change", "mean"], "half_life": "1h"},
    {"of": "RH_1", "time": "date", "stats": ["last", "change", "mean"], "half_life": "1h"},
]
FIRST = datetime(2016, 1, 11)
ROOMS = 9
PER_DAY = 144
SHOWN = 3
SILENT = 0.01
"""Share of the readings that are missing."""


def read(path: Path) -> Iterator[Row]:
    """The records of UCI's file, with the label of the record before."""
    before = "NA"
    for record in table(path):
        yield {**record, BEFORE: before}
        before = record[TARGET]


def made(rows: int, seed: int) -> Iterator[Row]:
    """Generated records. The sensor of room 3 drifts after 60 % of them and fails after 80 %."""
    draw, gaps = random.Random(seed), random.Random(seed + 1)
    outside = cooking = 0.0
    before = "NA"
    for row in range(rows):
        hour = row % PER_DAY / PER_DAY * 24.0
        outside = 0.99 * outside + draw.gauss(0.0, 0.3)
        cooking = max(0.0, 0.85 * cooking + (draw.expovariate(0.02) if _is_meal(hour, draw) else 0))
        warmth = 6.0 + outside + 4.0 * math.sin(2.0 * math.pi * (hour - 9.0) / 24.0)
        sensors = {"T_out": warmth, "RH_out": 80.0 - warmth + draw.gauss(0.0, 2.0)}
        for room in range(1, ROOMS + 1):
            inside = 20.0 + 0.1 * warmth + 0.3 * room % 2 + draw.gauss(0.0, 0.1)
            sensors[f"T{room}"] = inside + (0.02 * cooking if room in (1, 3) else 0.0)
            sensors[f"RH_{room}"] = 40.0 + 0.05 * cooking + draw.gauss(0.0, 1.0)
        if row > 0.6 * rows:
            sensors["T3"] += 40.0 * (row / rows - 0.6)
        lights = 10.0 * draw.randint(0, 2) if hour < 1.0 or hour > 17.0 else 0.0
        drawn = 50.0 + cooking + lights + 2.0 * max(0.0, 5.0 - warmth) + draw.gauss(0.0, 5.0)
        record: Row = {
            "date": FIRST + row * timedelta(minutes=10),
            BEFORE: before,
            "lights": lights,
        }
        for name, value in sensors.items():
            is_silent = gaps.random() < SILENT
            record[name] = gaps.choice(["", "NA"]) if is_silent else f"{value:.2f}"
        if row > 0.8 * rows:
            record["T3"] = "NA"
        before = f"{round(drawn, -1):.0f}"
        yield record | {TARGET: before}


def _is_meal(hour: float, draw: random.Random) -> bool:
    return draw.random() < (0.25 if 7 <= hour < 8 or 12 <= hour < 13 or 17 <= hour < 20 else 0.02)


def run(options: argparse.Namespace, console: Console) -> None:
    rows = taken(options, read, made)
    show(console, f"{len(rows):,} intervals of ten minutes, {options.data or 'generated'}")
    with connected(options.url, console) as client:
        client.create(MODEL, SPEC | {"history": HISTORY}, replace=True)
        client.create(PLAIN, SPEC, replace=True)
        show(console, "\nMean absolute error of the last 1,000 rows, in Wh:")
        show(console, "    rows     model   mean so far   last value   model without history")
        learn(rows, lambda block: _send(client, block), lambda: _report(console, client))
        show_drift(console, client, MODEL)
        show_shares(console, client, MODEL)
        _last_rows(console, client, rows[-SHOWN:])
        since = client.metrics(MODEL)["since_start"]
        error, baselines = errors(since, "mae")
        squared, others = errors(since, "rmse")
        show(
            console,
            f"\nOver all rows, in Wh, model / mean so far / last value: mean absolute error "
            f"{error:.1f} / {baselines[0]:.1f} / {baselines[1]:.1f}, root mean square "
            f"{squared:.1f} / {others[0]:.1f} / {others[1]:.1f}.",
            f"Root mean square, which the model minimises: {ratio(squared, others)}",
            _gain(squared, client.metrics(PLAIN)["since_start"]["rmse"]),
        )


def _gain(error: float, plain: float) -> str:
    """What the history gains."""
    return (
        f"Without history it is {plain:.2f} in place of {error:.2f}: "
        f"history {'gains' if error < plain else 'loses'} {abs(1 - error / plain):.1%}."
    )


def as_csv(rows: Sequence[Row]) -> RowFile:
    """The records as a CSV file, which `dualstream learn` would send in the same way."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    name = "sensors.csv"
    return RowFile(name, kind_of(name), stream=io.BytesIO(text.getvalue().encode()))


def _send(client: Client, rows: Sequence[Row]) -> None:
    for model in (MODEL, PLAIN):
        client.learn_file(model, as_csv(rows))


def _report(console: Console, client: Client) -> None:
    metrics = client.metrics(MODEL)
    error, (mean, last) = errors(metrics["rolling"], "mae")
    plain = client.metrics(PLAIN)["rolling"]["mae"]
    show(console, f"{metrics['samples']:8,} {error:9.1f} {mean:13.1f} {last:12.1f} {plain:23.1f}")


def _last_rows(console: Console, client: Client, rows: Sequence[Row]) -> None:
    show(console, "\nPredictions of the last rows, after they were learned (POST predict):")
    for answer in client.predict_file(MODEL, as_csv(rows)):
        for score, row in zip(answer.scores, rows, strict=True):
            show(console, f"  predicted {score:7.1f} Wh   actual {float(row[TARGET]):7.1f} Wh")


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> None:
    run(flags(__doc__ or "", 8_000).parse_args(arguments), console or Console())


if __name__ == "__main__":
    main()
