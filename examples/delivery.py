"""Delivery time: when will the meal arrive, and what time can be promised?

An order has a restaurant, a distance, a number of dishes and the orders that the couriers still
have. It is predicted when it comes in, and its label, the minutes until the meal is there, is sent
when it is there. `history` by restaurant adds what the last orders took. With `intervals` the
prediction has a range of 80 %: its upper end, which one order in ten misses, is the promise. Rain
comes and goes, and after 60 % two couriers of five are gone. The baselines are a formula of
distance, dishes, waiting orders and rain, fitted every night to all orders so far, and the mean of
the restaurant so far; each promises itself plus a margin that one order in ten has missed so far.

  python -m examples.delivery                   generated orders
  python -m examples.delivery --data orders.csv  columns order (an id), at (ISO 8601), restaurant,
      km, dishes, waiting, rain (0 or 1) and minutes, in the order of time
"""

import argparse
import heapq
import math
import random
from bisect import insort
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta

import numpy as np
from rich.console import Console

from dualstream.client import Client
from examples.common import (
    Losses,
    Reports,
    Result,
    Row,
    blocks,
    connected,
    intervals,
    records,
    show,
    start,
    taken,
    without,
)
from examples.pictures import Chart

MODEL = "delivery"
PER_REQUEST = 10
LABEL = "minutes"
SPEC = {
    "task": "regression",
    "columns": {
        "label": LABEL,
        "id": "order",
        "types": {
            "at": {"kind": "time", "parts": ["hour", "weekday"]},
            "restaurant": "category",
            "km": "number",
            "dishes": "number",
            "waiting": "number",
            "rain": "boolean",
        },
    },
    "history": [
        {
            "by": "restaurant",
            "time": "at",
            "stats": ["count", "label_mean"],
            "half_life": ["1h", "7d"],
        },
        {"time": "at", "stats": ["label_mean"], "half_life": "1h"},
    ],
    "intervals": {"coverage": 0.8},
}
FIRST = datetime(2024, 9, 2, 11)
RESTAURANTS, DAYS = 15, 20
FEWER_AFTER = 0.6
MISSED = 0.1
"""Share of the promises that may be missed."""
WARM_UP = 300
"""First orders, which do not count: the baselines need some for their margins."""

read = records(
    times=["at"], numbers=["km", "dishes", "waiting", LABEL], others=["order", "restaurant", "rain"]
)


def made(rows: int, seed: int) -> Iterator[Row]:
    """Generated orders of twenty days, from 11 to 22 h with peaks at noon and in the evening."""
    draw = random.Random(seed)
    kitchen = [draw.uniform(6.0, 22.0) for _ in range(RESTAURANTS)]
    ends: list[float] = []
    is_rain = False
    for row in range(rows):
        day, part = divmod(row * DAYS / rows, 1.0)
        if part * rows < DAYS or draw.random() < 0.01:
            is_rain = draw.random() < 0.3
        # More orders at noon and in the evening: time is stretched between them.
        minute = 660.0 * (part - 0.09 * math.sin(4.0 * math.pi * part))
        now = day * 1440.0 + minute
        while ends and ends[0] < now:
            heapq.heappop(ends)
        couriers = 15 if row > FEWER_AFTER * rows else 25
        restaurant, km = draw.randrange(RESTAURANTS), min(8.0, draw.lognormvariate(0.8, 0.5))
        dishes = 1 + min(9, int(draw.expovariate(0.5)))
        minutes = kitchen[restaurant] * (0.7 + 0.1 * dishes) + km * (5.0 if is_rain else 3.2)
        minutes += 15.0 * max(0.0, len(ends) / couriers - 0.5) + draw.gauss(0.0, 2.0)
        minutes *= draw.lognormvariate(0.0, 0.12)
        heapq.heappush(ends, now + minutes)
        yield {
            "order": f"o{row}",
            "at": FIRST + timedelta(minutes=now),
            "restaurant": f"r{restaurant}",
            "km": round(km, 2),
            "dishes": dishes,
            "waiting": len(ends) - 1,
            "rain": int(is_rain),
            LABEL: round(max(5.0, minutes), 1),
        }


class Formula:
    """Least squares on distance, dishes, waiting orders and rain, fitted every night."""

    def __init__(self) -> None:
        self._x: list[list[float]] = []
        self._y: list[float] = []
        self._weights: list[float] | None = None
        self._day: date | None = None

    def predict(self, row: Row) -> float:
        if row["at"].date() != self._day and self._y:
            self._day = row["at"].date()
            self._weights = list(np.linalg.lstsq(np.array(self._x), np.array(self._y))[0])
        if self._weights is None:
            return 30.0
        return sum(w * x for w, x in zip(self._weights, self._columns(row), strict=True))

    def learn(self, row: Row) -> None:
        self._x.append(self._columns(row))
        self._y.append(float(row[LABEL]))

    @staticmethod
    def _columns(row: Row) -> list[float]:
        return [1.0, *(float(row[name]) for name in ("km", "dishes", "waiting", "rain"))]


class RestaurantMean:
    """Mean of the delivered orders of the restaurant."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def predict(self, row: Row) -> float:
        count, total = self._sums[row["restaurant"]]
        return total / count if count else 30.0

    def learn(self, row: Row) -> None:
        sums = self._sums[row["restaurant"]]
        sums[0] += 1.0
        sums[1] += float(row[LABEL])


class Promises:
    """Promises of a baseline: its prediction and a margin, which one order in ten has missed."""

    def __init__(self, baseline: Formula | RestaurantMean) -> None:
        self.baseline = baseline
        self._errors: list[float] = []

    def margin(self) -> float:
        errors = self._errors
        return errors[int((1.0 - MISSED) * len(errors))] if errors else 15.0

    def learn(self, row: Row, predicted: float) -> None:
        insort(self._errors, float(row[LABEL]) - predicted)
        self.baseline.learn(row)


def _send_labels(
    client: Client, due: list[tuple[datetime, int]], rows: Sequence[Row], until: datetime
) -> list[int]:
    """Send the labels of the meals that have arrived; returns the indices of their orders."""
    arrived: list[int] = []
    while due and due[0][0] <= until:
        arrived.append(heapq.heappop(due)[1])
    if arrived:
        labels: dict[str | int, float] = {
            rows[index]["order"]: rows[index][LABEL] for index in arrived
        }
        client.learn_labels(MODEL, labels)
    return arrived


def run(options: argparse.Namespace, console: Console) -> Result:
    rows = taken(options, read, made)
    show(console, f"{len(rows):,} orders, {options.data or 'generated'}")
    names = ("model", "formula", "restaurant")
    losses, late, promised = Losses(*names), Losses(*names), Losses(*names)
    chart, reports = (
        Chart("Delivery time", "orders", "mean absolute error, minutes"),
        Reports(len(rows)),
    )
    if options.data is None:
        chart.events.append((FEWER_AFTER * len(rows), "two couriers of five are gone"))
    others = {"formula": Promises(Formula()), "restaurant": Promises(RestaurantMean())}
    predicted: list[dict[str, float]] = []
    due: list[tuple[datetime, int]] = []
    with connected(options.url, console) as client:
        client.create(MODEL, SPEC, replace=True)
        show(console, "\nMean absolute error of the last 1,000 orders, in minutes:")
        show(console, "    rows     model   formula, nightly   mean of the restaurant")
        for block in blocks(rows, PER_REQUEST):
            for index in _send_labels(client, due, rows, block[0]["at"]):
                for name, other in others.items():
                    other.learn(rows[index], predicted[index][name])
            ids = [row["order"] for row in block]
            served = client.predict_and_remember(MODEL, without(block, "order", LABEL), ids)
            margins = {name: other.margin() for name, other in others.items()}
            for row, score, interval in zip(block, served.scores, intervals(served), strict=True):
                values = {name: other.baseline.predict(row) for name, other in others.items()}
                predicted.append(values)
                heapq.heappush(due, (row["at"] + timedelta(minutes=row[LABEL]), len(predicted) - 1))
                if len(predicted) <= WARM_UP or interval is None:
                    continue
                values = {"model": score or 0.0} | values
                ends = {"model": interval[1]}
                ends |= {name: values[name] + margins[name] for name in others}
                losses.add(**{name: abs(row[LABEL] - value) for name, value in values.items()})
                late.add(**{name: float(row[LABEL] > end) for name, end in ends.items()})
                promised.add(**ends)
            done = len(predicted)
            last = losses.rolling()
            if last:
                chart.add(
                    done,
                    Dualstream=last["model"],
                    formula_fitted_every_night=last["formula"],
                    mean_of_the_restaurant=last["restaurant"],
                )
                if reports.is_due(done):
                    cells = [last[name] for name in names]
                    show(console, f"{done:8,} {cells[0]:9.1f} {cells[1]:18.1f} {cells[2]:24.1f}")
    show(
        console,
        "\nPromises, mean minutes and missed: "
        + ", ".join(
            f"{name} {promised.mean(name):.1f} and {late.mean(name):.1%}"
            f" ({late.rolling()[name]:.1%} of the last 1,000)"
            for name in names
        ),
    )
    return Result(
        "Mean absolute error, minutes",
        losses.mean("model"),
        {
            "formula fitted every night": losses.mean("formula"),
            "mean of the restaurant": losses.mean("restaurant"),
        },
        chart,
    )


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> Result:
    return start(__doc__ or "", 6_000, run, arguments, console)


if __name__ == "__main__":
    main()
