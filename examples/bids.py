"""Bids: how much should be bid for an impression in a first-price auction?

Each impression has a value, such as a click model gives it. The highest bid wins, and is paid. A
bid below the value wins less often, and pays less. The model learns the probability to win at a
bid. It is asked for eight bids on each impression, and the bid of the largest expected profit,
probability times (value - bid), is sent. Its outcome is learned at once. After half of the auctions
the others bid a third more. The baselines bid a fixed share of the value: one half,
and the share that turns out best for all auctions together.

  python -m examples.bids                      generated auctions
  python -m examples.bids --data auctions.csv  columns at (ISO 8601), site, device, size, value and
      market (the highest bid of the others), in the order of time
"""

import argparse
import math
import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from rich.console import Console

from examples.common import (
    Reports,
    Result,
    Row,
    blocks,
    connected,
    records,
    show,
    start,
    taken,
    without,
)
from examples.pictures import Chart

MODEL = "bids"
PER_REQUEST = 25
LABEL, MARKET, VALUE = "won", "market", "value"
SPEC = {
    "columns": {
        "label": LABEL,
        "types": {
            "at": {"kind": "time", "parts": ["hour"]},
            "site": "category",
            "device": "category",
            "size": "category",
            "log_bid": "number",
        },
    }
}
SHARES = [step / 20 for step in range(4, 20, 2)]
"""Bids, as shares of the value, among which the model chooses."""
EXPLORED, SPREAD = 300, 0.1
"""First auctions, whose bids are drawn; relative deviation of all later bids from the best one."""
FIXED = [step / 20 for step in range(1, 20)]
FIRST = datetime(2024, 5, 6)
SITES, DEVICES, SIZES = 10, ("phone", "desktop", "tv"), ("small", "large", "video")
RISES_AFTER = 0.5

read = records(times=["at"], numbers=[VALUE, MARKET], others=["site", "device", "size"])


def made(rows: int, seed: int) -> Iterator[Row]:
    """Generated auctions; sites and sizes have their prices, and all of them rise in the middle."""
    draw = random.Random(seed)
    of_site = [draw.gauss(0.0, 0.5) for _ in range(SITES)]
    of_size = dict(zip(SIZES, (-0.4, 0.0, 0.5), strict=True))
    of_device = dict(zip(DEVICES, (0.0, -0.2, 0.4), strict=True))
    for row in range(rows):
        at = FIRST + row * timedelta(days=4) / rows
        site, device, size = draw.randrange(SITES), draw.choice(DEVICES), draw.choice(SIZES)
        # The value of an impression is hardly related to its price.
        value = math.exp(0.9 + 0.3 * of_size[size] + draw.gauss(0.0, 0.35))
        price = of_site[site] + of_size[size] + of_device[device] + draw.gauss(0.0, 0.25)
        price += 0.2 * math.sin(2.0 * math.pi * (at.hour - 14) / 24)
        if row > RISES_AFTER * rows:
            price += math.log(4.0 / 3.0)
        yield {
            "at": at,
            "site": f"s{site}",
            "device": device,
            "size": size,
            VALUE: round(value, 3),
            MARKET: round(math.exp(price), 3),
        }


def profit(row: Row, bid: float) -> float:
    """What a bid earns: the value less the bid if it wins."""
    return float(row[VALUE] - bid) if bid > row[MARKET] else 0.0


def run(options: argparse.Namespace, console: Console) -> Result:
    rows = taken(options, read, made)
    show(console, f"{len(rows):,} auctions, {options.data or 'generated'}")
    draw, reports = random.Random(options.seed + 1), Reports(len(rows))
    chart = Chart("Bids in first-price auctions", "auctions", "profit, % of the possible one")
    if options.data is None:
        chart.events.append((RISES_AFTER * len(rows), "prices rise by a third"))
    earned = possible = 0.0
    wins = 0
    fixed = dict.fromkeys(FIXED, 0.0)
    done = 0
    with connected(options.url, console) as client:
        client.create(MODEL, SPEC, replace=True)
        show(console, "\nProfit so far, in percent of that of one who knows the others' bids:")
        show(console, "    rows     model   half of the value   best share with hindsight")
        for block in blocks(rows, PER_REQUEST):
            if done < EXPLORED:
                shares = [draw.choice(SHARES) for _ in block]
            else:
                asked = [_as_sent(row, share * row[VALUE]) for row in block for share in SHARES]
                chances = client.predict(MODEL, asked).probabilities
                shares = [
                    _best_share(chances[first : first + len(SHARES)])
                    for first in range(0, len(chances), len(SHARES))
                ]
            outcomes: list[Row] = []
            for row, share in zip(block, shares, strict=True):
                bid = share * row[VALUE] * (1.0 + draw.uniform(-SPREAD, SPREAD))
                gain = profit(row, bid)
                earned += gain
                is_won = bid > row[MARKET]
                wins += is_won
                outcomes.append(_as_sent(row, bid) | {LABEL: int(is_won)})
                possible += max(0.0, row[VALUE] - row[MARKET])
                for other in FIXED:
                    fixed[other] += profit(row, other * row[VALUE])
            client.learn(MODEL, outcomes)
            done += len(block)
            best = max(fixed.values())
            percent = [100.0 * gain / possible for gain in (earned, fixed[0.5], best)]
            chart.add(
                done,
                Dualstream=percent[0],
                half_of_the_value=percent[1],
                best_share_with_hindsight=percent[2],
            )
            if reports.is_due(done):
                show(
                    console, f"{done:8,} {percent[0]:8.1f}% {percent[1]:18.1f}% {percent[2]:29.1f}%"
                )
    share = max(fixed, key=lambda one: fixed[one])
    show(
        console,
        f"\n{wins / len(rows):.0%} of the auctions were won; the best fixed share is {share:.0%}. "
        f"The first {EXPLORED} auctions, whose bids are drawn, are included.",
    )
    return Result(
        "Profit, % of the possible one",
        100.0 * earned / possible,
        {
            "half of the value": 100.0 * fixed[0.5] / possible,
            "best share with hindsight": 100.0 * fixed[share] / possible,
        },
        chart,
        is_error=False,
    )


def _as_sent(row: Row, bid: float) -> Row:
    """What the model may know of an auction: not the value, and not the bids of others."""
    [columns] = without([row], VALUE, MARKET)
    return columns | {"log_bid": math.log(max(bid, 1e-6))}


def _best_share(chances: Sequence[float]) -> float:
    """The share of the value with the largest expected profit."""
    return max(zip(chances, SHARES, strict=True), key=lambda pair: pair[0] * (1.0 - pair[1]))[1]


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> Result:
    return start(__doc__ or "", 5_000, run, arguments, console)


if __name__ == "__main__":
    main()
