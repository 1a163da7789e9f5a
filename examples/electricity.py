"""Electricity prices: classification of a drifting stream.

Each row is a half hour in New South Wales, as an export has it: a timestamp, five measurements and
the label, UP or DOWN, which says whether its price is above the mean of the last day. `columns`
declares what they are; the server makes the features. Every row is predicted before it is learned.

  python -m examples.electricity                        generated rows
  python -m examples.electricity --data electricity.csv  elec2, as OpenML or River have it: columns
      date, day, period, nswprice, nswdemand, vicprice, vicdemand, transfer, class (UP or DOWN)
"""

import argparse
import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from rich.console import Console

from dualstream.client import Client
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

MODEL, WINDOWS = "electricity", "electricity-windows"
HALF_HOURS = 48
FIRST = datetime(1996, 5, 7)
# elec2 has no times: `period` is that of the day, and `date` has a new value every day.
COLUMNS = {
    "labels": ["DOWN", "UP"],
    "columns": {
        "label": "class",
        "ignore": ["date"],
        "types": {
            "at": {"kind": "time", "parts": ["hour", "weekday"]},
            "day": "category",
            "period": "number",
        },
    },
}
LEARNER = {"algorithm": "dual_ascent", "loss": "logistic", "strength": 30, "scaling": "balanced"}
# One learner under three windows, as the members of a portfolio.
THREE_WINDOWS = COLUMNS | {
    "algorithm": "portfolio",
    "features": {"kind": "hashed", "bits": 18},
    "members": [
        LEARNER | {"name": "infinite", "window": "infinite"},
        LEARNER | {"name": "exponential", "window": "exponential"},
        LEARNER | {"name": "sliding", "window": "sliding", "retain": 2000},
    ],
}


def read(path: Path) -> Iterator[Row]:
    """The rows of elec2, which OpenML's file writes as b'DOWN' and b'7'."""
    for row in table(path):
        yield {name: text.strip("b'\" ") for name, text in row.items()}


def made(rows: int, seed: int) -> Iterator[Row]:
    """Generated rows. A link to a neighbour opens after 40 %, prices reverse after 70 %."""
    draw = random.Random(seed)
    last_day: deque[float] = deque([0.06], maxlen=HALF_HOURS)
    weather = neighbour = 0.0
    for row in range(rows):
        period = row % HALF_HOURS / (HALF_HOURS - 1)
        weather = 0.98 * weather + 0.02 * draw.gauss(0.0, 1.0)
        neighbour = 0.95 * neighbour + 0.05 * draw.gauss(0.0, 1.0)
        daily = math.sin(2.0 * math.pi * (period - 0.3))
        demand = 0.45 + 0.2 * daily + 0.5 * weather + 0.02 * draw.gauss(0.0, 1.0)
        is_linked, is_turned = row > 0.4 * rows, row > 0.7 * rows
        # Solar power in the last part: at noon demand is high and prices are low.
        price = 0.06 + (-0.03 if is_turned else 0.05) * (demand - 0.45)
        price += (0.06 if is_linked else 0.0) * neighbour + 0.002 * draw.gauss(0.0, 1.0)
        yield {
            "at": FIRST + row * timedelta(minutes=30),
            "nswprice": price,
            "nswdemand": demand,
            "vicprice": 0.06 + (0.06 * neighbour if is_linked else 0.0),
            "vicdemand": 0.45 + neighbour,
            "transfer": neighbour if is_linked else 0.0,
            "class": "UP" if price > sum(last_day) / len(last_day) else "DOWN",
        }
        last_day.append(price)


def run(options: argparse.Namespace, console: Console) -> None:
    rows = taken(options, read, made)
    show(console, f"{len(rows):,} half hours, {options.data or 'generated'}")
    with connected(options.url, console) as client:
        client.create(MODEL, COLUMNS, replace=True)
        client.create(WINDOWS, THREE_WINDOWS, replace=True)
        show(console, "\nError rates of the last 1,000 rows:")
        show(
            console,
            "    rows     model   majority class   last label   one learner, its best window",
        )
        learn(rows, lambda block: _send(client, block), lambda: _report(console, client))
        _windows(console, client)
        show_drift(console, client, MODEL)
        show_shares(console, client, MODEL)
        error, baselines = errors(client.metrics(MODEL)["since_start"], "error_rate")
        show(
            console,
            f"\nOver all rows: {error:.1%}, majority class {baselines[0]:.1%}, "
            f"last label {baselines[1]:.1%}. {ratio(error, baselines)}",
            "Consecutive half hours mostly have the same label, so the last label is hard to beat; "
            "the model does not get it as a feature.",
        )


def _send(client: Client, rows: Sequence[Row]) -> None:
    for model in (MODEL, WINDOWS):
        client.learn(model, rows)


def _report(console: Console, client: Client) -> None:
    metrics = client.metrics(MODEL)
    error, (majority, last) = errors(metrics["rolling"], "error_rate")
    best = min(client.members(WINDOWS).members, key=lambda one: one.rolling.error_rate or 0.0)
    show(
        console,
        f"{metrics['samples']:8,} {error:9.1%} {majority:16.1%} {last:12.1%}   "
        f"{best.name} {best.rolling.error_rate:.1%}",
    )


def _windows(console: Console, client: Client) -> None:
    show(console, f"\nOne learner under three windows (GET /models/{WINDOWS}/members):")
    for member in client.members(WINDOWS).members:
        show(console, f"  {member.name:<12} {member.since_start.error_rate:6.1%} errors")


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> None:
    options = flags(__doc__ or "", 12_000).parse_args(arguments)
    run(options, console or Console())


if __name__ == "__main__":
    main()
