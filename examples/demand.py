"""Demand: how many units will each shop sell tomorrow, and how many should be delivered?

A row is a shop and a day: weekday, promotion, temperature forecast, public holiday. `history` by
shop adds its last labels, that of the same weekday last week among them. With `intervals` each
prediction has a range that holds nine of ten results. A competitor opens near five shops after 60 %
of the days. The baselines are the same weekday last week, and the mean of the last four of them.

  python -m examples.demand                   generated days
  python -m examples.demand --data sales.csv  columns at (a date), shop, promotion (0 or 1), holiday
      (0 or 1), temperature and units, in the order of time
"""

import argparse
import math
import random
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from statistics import fmean

from rich.console import Console

from examples.common import (
    Losses,
    Reports,
    Result,
    Row,
    by_day,
    connected,
    intervals,
    records,
    show,
    start,
    taken,
    without,
)
from examples.pictures import Chart

MODEL = "demand"
LABEL = "units"
WEEK = 7
SPEC = {
    "task": "regression",
    "columns": {
        "label": LABEL,
        "types": {
            "at": {"kind": "time", "parts": ["weekday", "year_day"]},
            "shop": "category",
            "promotion": "boolean",
            "holiday": "boolean",
            "temperature": "number",
        },
    },
    "history": [
        {"by": "shop", "time": "at", "stats": "label_mean", "half_life": ["3d", "14d"], "labels": 7}
    ],
    "intervals": {"coverage": 0.9},
    "segments": ["promotion", "holiday"],
}
FIRST = datetime(2023, 3, 6)
SHOPS, NEAR_COMPETITOR = 25, 5
OPENS_AFTER = 0.6
OF_WEEKDAYS = (0.8, 0.8, 0.85, 0.95, 1.2, 1.5, 0.6)
SHOWN_DAYS = 60
"""Days of one shop in the picture."""

read = records(
    times=["at"], numbers=[LABEL], others=["shop", "promotion", "holiday", "temperature"]
)


def made(rows: int, seed: int) -> Iterator[Row]:
    """Generated days of 25 shops: season, weather, promotions, and a competitor."""
    draw = random.Random(seed)
    size = [draw.uniform(40.0, 220.0) for _ in range(SHOPS)]
    weather = 0.0
    for day in range(math.ceil(rows / SHOPS)):
        at = FIRST + timedelta(days=day)
        season = math.sin(2.0 * math.pi * (at.timetuple().tm_yday - 110) / 365.0)
        weather = 0.8 * weather + draw.gauss(0.0, 2.0)
        temperature = 12.0 + 9.0 * season + weather
        is_holiday = draw.random() < 0.03
        for shop in range(min(SHOPS, rows - day * SHOPS)):
            is_promoted = draw.random() < 0.12
            mean = size[shop] * OF_WEEKDAYS[at.weekday()] * (1.0 + 0.02 * (temperature - 12.0))
            mean *= (1.5 if is_promoted else 1.0) * (0.4 if is_holiday else 1.0)
            if day * SHOPS > OPENS_AFTER * rows and shop < NEAR_COMPETITOR:
                mean *= 0.55
            units = max(0, round(draw.gauss(mean, 0.08 * mean + math.sqrt(mean))))
            yield {
                "at": at,
                "shop": f"shop-{shop}",
                "promotion": int(is_promoted),
                "holiday": int(is_holiday),
                "temperature": round(temperature + draw.gauss(0.0, 1.5), 1),
                LABEL: units,
            }


def run(options: argparse.Namespace, console: Console) -> Result:
    rows = taken(options, read, made)
    shops = len({row["shop"] for row in rows})
    show(console, f"{len(rows):,} days of {shops} shops, {options.data or 'generated'}")
    losses, reports = Losses("model", "last_week", "four_weeks"), Reports(len(rows))
    sold: dict[tuple[str, int], deque[float]] = defaultdict(lambda: deque(maxlen=4))
    shown: list[tuple[datetime, float, tuple[float, float], float]] = []
    done = 0
    with connected(options.url, console) as client:
        client.create(MODEL, SPEC, replace=True)
        show(console, "\nMean absolute error of the last 1,000 rows, in units:")
        show(console, "    rows     model   same weekday last week   mean of four such weekdays")
        for day in by_day(rows):
            served = client.predict(MODEL, without(day, LABEL))
            client.learn(MODEL, day)
            for row, score, interval in zip(day, served.scores, intervals(served), strict=True):
                before = sold[row["shop"], row["at"].weekday()]
                units = float(row[LABEL])
                if before and interval is not None:
                    losses.add(
                        model=abs(units - score),
                        last_week=abs(units - before[-1]),
                        four_weeks=abs(units - fmean(before)),
                    )
                if row["shop"] == rows[0]["shop"] and interval is not None:
                    shown.append((row["at"], score, interval, units))
                before.append(units)
            done += len(day)
            last = losses.rolling()
            if last and reports.is_due(done):
                cells = [last[name] for name in ("model", "last_week", "four_weeks")]
                show(console, f"{done:8,} {cells[0]:9.1f} {cells[1]:24.1f} {cells[2]:28.1f}")
        metrics = client.metrics(MODEL)
        segments = client.segments(MODEL, "promotion").since_start
    kept = metrics["intervals"][0]
    show(
        console,
        f"\nThe 90 % intervals held {kept['coverage']:.1%} of the results, and "
        f"{kept['recent_coverage']:.1%} of the last 1,000; mean width {kept['mean_width']:.0f}.",
        "Error by promotion (GET metrics?by=promotion): "
        + ", ".join(f"{one.value} {one.mae:.1f}" for one in segments),
    )
    return Result(
        "Mean absolute error, units",
        losses.mean("model"),
        {
            "same weekday last week": losses.mean("last_week"),
            "mean of four such weekdays": losses.mean("four_weeks"),
        },
        _chart(shown[-SHOWN_DAYS:]),
    )


def _chart(shown: Sequence[tuple[datetime, float, tuple[float, float], float]]) -> Chart:
    """The last days of the first shop."""
    chart = Chart("Demand of one shop, with 90 % intervals", "day", "units")
    for day, (_, score, (low, high), units) in enumerate(shown, 1):
        chart.add(day, predicted=score, sold=units)
        chart.band.append((day, low, high))
    return chart


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> Result:
    return start(__doc__ or "", 7_500, run, arguments, console)


if __name__ == "__main__":
    main()
