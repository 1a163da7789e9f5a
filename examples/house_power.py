"""House power: how much energy will a house use in ten minutes, by sensors of which one fails?

A row is ten minutes: the time, temperature and humidity of each room, the weather, and the energy
that the appliances used in the previous ten minutes. The label is the energy used now, in Wh. The
rows are CSV, with `NA` or an empty field where a sensor was silent, and are sent as they are.

  python -m examples.house_power                                generated rows
  python -m examples.house_power --data energydata_complete.csv  UCI's Appliances Energy Prediction:
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
from examples.common import Reports, Result, Row, blocks, connected, records, show, start, taken
from examples.pictures import Chart

MODEL, PLAIN = "house-power", "house-power-without-history"
PER_REQUEST = 250
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
EVENTS = {0.6: "a sensor drifts", 0.8: "it fails"}
SILENT = 0.01
"""Share of the readings that are missing."""


def read(path: Path) -> Iterator[Row]:
    """The records of UCI's file, with the label of the record before."""
    before = "NA"
    for record in records(others=("date", TARGET, "T1", "RH_1"))(path):
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


def run(options: argparse.Namespace, console: Console) -> Result:
    rows = taken(options, read, made)
    show(console, f"{len(rows):,} intervals of ten minutes, {options.data or 'generated'}")
    chart = Chart("House power", "rows", "root mean square error, Wh, last 1,000")
    if options.data is None:
        chart.events += [(share * len(rows), event) for share, event in EVENTS.items()]
    reports, done = Reports(len(rows)), 0
    with connected(options.url, console) as client:
        client.create(MODEL, SPEC | {"history": HISTORY}, replace=True)
        client.create(PLAIN, SPEC, replace=True)
        show(console, "\nRoot mean square error of the last 1,000 rows, in Wh:")
        show(console, "    rows     model   mean so far   last value   model without history")
        for block in blocks(rows, PER_REQUEST):
            for model in (MODEL, PLAIN):
                client.learn_file(model, as_csv(block))
            done += len(block)
            rolling, plain = (client.metrics(model)["rolling"] for model in (MODEL, PLAIN))
            mean, last = (baseline["rmse"] for baseline in rolling["baselines"].values())
            cells = [rolling["rmse"], mean, last, plain["rmse"]]
            chart.add(
                done, Dualstream=cells[0], mean_so_far=mean, last_value=last, no_history=cells[3]
            )
            if reports.is_due(done):
                show(
                    console,
                    f"{done:8,} {cells[0]:9.1f} {cells[1]:13.1f} {cells[2]:12.1f} {cells[3]:23.1f}",
                )
        _drift(console, client)
        since, plain = (client.metrics(model)["since_start"] for model in (MODEL, PLAIN))
    mean, last = (baseline["rmse"] for baseline in since["baselines"].values())
    return Result(
        "Root mean square error, Wh",
        since["rmse"],
        {"mean so far": mean, "last value": last, "without history": plain["rmse"]},
        chart,
    )


def _drift(console: Console, client: Client) -> None:
    """The columns that have moved most from their past."""
    moved = [one for one in client.columns(MODEL).columns if one.psi is not None][:3]
    show(
        console,
        f"\nColumns that have moved most (GET /models/{MODEL}/columns): "
        + ", ".join(f"{one.name} {one.psi:.2f}" for one in moved),
    )


def as_csv(rows: Sequence[Row]) -> RowFile:
    """The records as a CSV file, which `dualstream learn` would send in the same way."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    name = "house_power.csv"
    return RowFile(name, kind_of(name), stream=io.BytesIO(text.getvalue().encode()))


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> Result:
    return start(__doc__ or "", 8_000, run, arguments, console)


if __name__ == "__main__":
    main()
