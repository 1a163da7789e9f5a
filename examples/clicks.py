"""Clicks: which impressions of an advertisement will be clicked?

An impression has a time, a site, an advertisement, a device and a place on the page. New
advertisements replace old ones every day, and each wears out as it is shown. The model predicts
an impression before it learns whether it was clicked. A LightGBM model that is trained every night
on all days so far, and the click rate of the advertisement so far, are the baselines.

  python -m examples.clicks                    generated impressions
  python -m examples.clicks --data clicks.csv  columns at (ISO 8601), site, ad, device, slot and
      clicked (0 or 1), in the order of time
"""

import argparse
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from operator import itemgetter

from rich.console import Console

from examples.common import (
    Losses,
    Reports,
    Result,
    Row,
    blocks,
    by_day,
    connected,
    records,
    show,
    start,
    taken,
    without,
)
from examples.nightly import NightlyTrees
from examples.pictures import Chart

MODEL = "clicks"
PER_REQUEST = 50
LABEL = "clicked"
CATEGORIES = ("site", "ad", "device", "slot")
SPEC = {
    "columns": {
        "label": LABEL,
        "types": {"at": {"kind": "time", "parts": ["hour"]}}
        | dict.fromkeys(CATEGORIES, "category"),
    }
}
FIRST = datetime(2024, 3, 4)
DAYS = 12
SITES, DEVICES, SLOTS = 12, ("phone", "tablet", "desktop"), ("top", "side", "feed", "foot")
RUNNING, NEW_A_DAY = 15, 5
"""Advertisements that run at a time, and those of them that are replaced each day."""

read = records(times=["at"], numbers=[LABEL], others=CATEGORIES)


def made(rows: int, seed: int) -> Iterator[Row]:
    """Generated impressions of twelve days; about one in eight is clicked."""
    draw = random.Random(seed)
    site_effect = [draw.gauss(0.0, 0.5) for _ in range(SITES)]
    slot_effect = dict(zip(SLOTS, (0.5, -0.2, 0.3, -0.9), strict=True))
    appeal: dict[int, list[float]] = {}
    shown = Counter[int]()
    running: list[int] = []
    a_day = math.ceil(rows / DAYS)
    for row in range(rows):
        if row % a_day == 0:
            for _ in range(NEW_A_DAY if running else RUNNING):
                number = len(appeal)
                # Of an advertisement on each site, and how much more phones like it.
                appeal[number] = [draw.gauss(0.0, 0.9) for _ in range(SITES + 1)]
                running.append(number)
            running = running[-RUNNING:]
        at = FIRST + timedelta(days=row // a_day, seconds=86_400 * (row % a_day) / a_day)
        site, device, slot = draw.randrange(SITES), draw.choice(DEVICES), draw.choice(SLOTS)
        ad = draw.choice(running)
        logit = -2.4 + site_effect[site] + slot_effect[slot] + appeal[ad][site]
        logit += appeal[ad][SITES] * (device == "phone") - 0.5 * shown[ad] / (5 * a_day / RUNNING)
        logit += 0.4 * math.sin(2.0 * math.pi * (at.hour - 14) / 24)
        shown[ad] += 1
        yield {
            "at": at,
            "site": f"s{site}",
            "ad": f"ad{ad}",
            "device": device,
            "slot": slot,
            LABEL: int(draw.random() < 1.0 / (1.0 + math.exp(-logit))),
        }


class AdRates:
    """The click rate of each advertisement so far, drawn towards the rate of all by 20 rows."""

    def __init__(self) -> None:
        self._shown, self._clicked = Counter[str](), Counter[str]()

    def predict(self, rows: Sequence[Row]) -> list[float]:
        mean = (sum(self._clicked.values()) + 1.0) / (sum(self._shown.values()) + 2.0)
        return [
            (self._clicked[row["ad"]] + 20.0 * mean) / (self._shown[row["ad"]] + 20.0)
            for row in rows
        ]

    def learn(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._shown[row["ad"]] += 1
            self._clicked[row["ad"]] += int(row[LABEL])


def log_loss(probability: float, is_positive: float) -> float:
    chance = probability if is_positive else 1.0 - probability
    return -math.log(max(chance, 1e-6))


def run(options: argparse.Namespace, console: Console) -> Result:
    rows = taken(options, read, made)
    rate = sum(row[LABEL] for row in rows) / len(rows)
    show(console, f"{len(rows):,} impressions, {options.data or 'generated'}; {rate:.1%} clicked")
    losses, chart = Losses("model", "nightly", "rate"), Chart("Clicks", "impressions", "log-loss")
    nightly, rates, reports = NightlyTrees(LABEL, CATEGORIES, ()), AdRates(), Reports(len(rows))
    ranked: list[tuple[float, float, float]] = []
    with connected(options.url, console) as client:
        client.create(MODEL, SPEC, replace=True)
        show(console, "\nLog-loss of the last 1,000 impressions:")
        show(console, "    rows     model   LightGBM, nightly   rate of the ad")
        done = 0
        for day in by_day(rows):
            for block in blocks(day, PER_REQUEST):
                served = client.predict(MODEL, without(block, LABEL)).probabilities
                client.learn(MODEL, block)
                trees, simple = nightly.predict(block), rates.predict(block)
                rates.learn(block)
                for row, ours, tree, ad in zip(block, served, trees, simple, strict=True):
                    # The first day, on which no night has passed, does not count.
                    if day[0] is not rows[0]:
                        y = row[LABEL]
                        losses.add(
                            model=log_loss(ours, y), nightly=log_loss(tree, y), rate=log_loss(ad, y)
                        )
                        ranked.append((ours, tree, y))
                done += len(block)
                last = losses.rolling()
                if last:
                    chart.add(
                        done,
                        Dualstream=last["model"],
                        LightGBM_every_night=last["nightly"],
                        rate_of_the_ad=last["rate"],
                    )
                    if reports.is_due(done):
                        cells = [last[name] for name in ("model", "nightly", "rate")]
                        show(
                            console, f"{done:8,} {cells[0]:9.4f} {cells[1]:19.4f} {cells[2]:16.4f}"
                        )
            nightly.learn(day)
        _shares(console, ranked)
    return Result(
        "Log-loss from the second day on",
        losses.mean("model"),
        {"LightGBM every night": losses.mean("nightly"), "rate of the ad": losses.mean("rate")},
        chart,
    )


def _shares(console: Console, ranked: Sequence[tuple[float, float, float]]) -> None:
    """Clicks among the tenth of the impressions with the largest probabilities."""
    clicks = sum(y for _, _, y in ranked)
    shares = []
    for by in (0, 1):
        top = sorted(ranked, key=itemgetter(by), reverse=True)[: len(ranked) // 10]
        shares.append(sum(y for _, _, y in top) / clicks)
    show(
        console,
        "\nThe tenth of the impressions with the largest probabilities has "
        f"{shares[0]:.0%} of the clicks; by LightGBM, nightly, {shares[1]:.0%}.",
    )


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> Result:
    return start(__doc__ or "", 9_600, run, arguments, console)


if __name__ == "__main__":
    main()
