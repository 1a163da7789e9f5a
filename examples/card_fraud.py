"""Card fraud: columns from the past of cards and terminals, labels that arrive a week later.

A payment has a time, a card, a terminal and an amount. `history` in the specification adds what a
single payment does not show: how often its card paid lately, how its amount differs from the
card's mean, how often the terminal's payments were fraud, as far as is known by then. A second
model has the same columns without history. Each payment is predicted when it arrives. Its label
arrives seven days later, as the customer reads the bill. `alert_rate` picks the payments that a
team checks.

  python -m examples.card_fraud                      generated payments
  python -m examples.card_fraud --data payments.csv  columns tx, at (ISO 8601), card, terminal,
      amount and fraud (0 or 1), in the order of time
  python -m examples.card_fraud --write payments.csv  writes generated payments, and ends
"""

import argparse
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    probabilities,
    records,
    show,
    start,
    taken,
)
from examples.pictures import Chart

MODEL, PLAIN = "card-fraud", "card-fraud-without-history"
PER_REQUEST = 25
DELAY = timedelta(days=7)
MIN_LABELS = 200
"""Before them the curves are chance."""
HIDDEN = {"tx", "fraud"}
"""Columns that are no features."""
SPEC = {
    "columns": {
        "label": "fraud",
        "id": "tx",
        "types": {
            "at": {"kind": "time", "parts": ["hour", "weekday"]},
            # Keys of the history, and no features of their own: with late labels this is better.
            "card": "ignore",
            "terminal": "ignore",
            "amount": "number",
        },
    },
    # About ten payments of the 140 of a day.
    "alert_rate": 0.07,
}
HISTORY = [
    {
        "by": "card",
        "time": "at",
        "of": "amount",
        "stats": ["count", "difference", "since"],
        "half_life": ["1d", "7d", "30d"],
    },
    {
        "by": "terminal",
        "time": "at",
        "stats": ["count", "since", "label_mean"],
        "half_life": ["1d", "7d", "30d"],
        "labels": 3,
    },
]

FIRST = datetime(2024, 1, 1)
DAY_S = 86400.0
CARDS, TERMINALS, TERMINALS_OF_A_CARD = 70, 100, 10
DAYS_OF_A_SKIMMER, DAYS_OF_A_COPY = 28, 14
SUSPICIOUS = 220.0


@dataclass(frozen=True)
class Card:
    payments_a_day: float
    mean_amount: float
    terminals: list[int]


read = records(times=["at"], numbers=["fraud"], others=["tx", "card", "terminal", "amount"])


def made(rows: int, seed: int) -> Iterator[Row]:
    """Generated payments, about 140 a day, in the order of time; 6 % are fraud."""
    return islice(_payments(random.Random(seed)), rows)


def _payments(draw: random.Random) -> Iterator[Row]:
    numbers = count(1)
    cards = [
        Card(
            draw.uniform(0.1, 4.0),
            draw.uniform(5.0, 100.0),
            draw.sample(range(TERMINALS), TERMINALS_OF_A_CARD),
        )
        for _ in range(CARDS)
    ]
    skimmed: dict[int, int] = {}
    copied: dict[int, int] = {}
    for day in count(-DAYS_OF_A_SKIMMER):
        # The last day on which a terminal has a skimmer, or on which a copy of a card is used.
        if day % 9 == 0:
            skimmed[draw.randrange(TERMINALS)] = day + DAYS_OF_A_SKIMMER
        if day % 4 == 0:
            copied[draw.randrange(CARDS)] = day + DAYS_OF_A_COPY
        if day < 0:
            continue
        payments = [
            _payment(draw, second, number, card, copied.get(number, -1) >= day)
            for number, card in enumerate(cards)
            for second in _seconds(draw, card.payments_a_day)
        ]
        for payment in sorted(payments, key=lambda payment: payment["at"]):
            is_skimmed = skimmed.get(payment["terminal"], -1) >= day
            is_fraud = payment["fraud"] or is_skimmed or payment["amount"] > SUSPICIOUS
            at = FIRST + timedelta(days=day, seconds=payment["at"])
            yield {"tx": f"t{next(numbers)}"} | payment | {"at": at, "fraud": int(is_fraud)}


def _seconds(draw: random.Random, payments_a_day: float) -> Iterator[int]:
    """The seconds of a day at which a card pays."""
    second = draw.expovariate(payments_a_day / DAY_S)
    while second < DAY_S:
        yield int(second)
        second += draw.expovariate(payments_a_day / DAY_S)


def _payment(draw: random.Random, second: int, number: int, card: Card, has_copy: bool) -> Row:
    """A payment of a card. A copy of the card makes a third of its payments, five times as high."""
    is_copy = has_copy and draw.random() < 1 / 3
    amount = abs(draw.gauss(card.mean_amount, card.mean_amount / 2))
    return {
        "at": second,
        "card": number,
        "terminal": draw.choice(card.terminals),
        "amount": round(5 * amount if is_copy else amount, 2),
        "fraud": is_copy,
    }


class Bank:
    """Predicts payments with two models, and sends each label seven days after its payment."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: deque[Row] = deque()
        # Of all payments, by the model with history.
        self.probabilities: list[float] = []
        self.alerts: list[bool] = []

    def take(self, payments: Sequence[Row]) -> None:
        self._send_labels(payments[0]["at"] - DELAY)
        ids = [row["tx"] for row in payments]
        rows = [{name: row[name] for name in row if name not in HIDDEN} for row in payments]
        self._client.predict_and_remember(PLAIN, rows, ids)
        served = self._client.predict_and_remember(MODEL, rows, ids)
        self.probabilities += probabilities(served)
        self.alerts += alerts(served)
        self._waiting.extend(payments)

    def _send_labels(self, until: datetime) -> None:
        """Send the labels of the payments until this time."""
        labels: dict[str | int, int] = {}
        while self._waiting and self._waiting[0]["at"] <= until:
            payment = self._waiting.popleft()
            labels[payment["tx"]] = payment["fraud"]
        if labels:
            for model in (MODEL, PLAIN):
                self._client.learn_labels(model, labels)


def run(options: argparse.Namespace, console: Console) -> Result:
    payments = taken(options, read, made)
    frauds = sum(payment["fraud"] for payment in payments)
    show(
        console,
        f"{len(payments):,} payments, {options.data or 'generated'}; "
        f"{frauds / len(payments):.1%} are fraud; labels arrive {DELAY.days} days later",
    )
    chart = Chart("Card fraud", "payments", "average precision, last 1,000")
    points, reports = Reports(len(payments), POINTS), Reports(len(payments))
    with connected(options.url, console) as client:
        client.create(MODEL, SPEC | {"history": HISTORY}, replace=True)
        client.create(PLAIN, SPEC, replace=True)
        bank = Bank(client)
        show(console, "\nAverage precision of the last 1,000 labelled payments, as served:")
        show(console, "payments   labels   with history   without")
        for block in blocks(payments, PER_REQUEST):
            bank.take(block)
            done = len(bank.alerts)
            if not points.is_due(done):
                continue
            metrics = [client.metrics(model) for model in (MODEL, PLAIN)]
            precisions = [one["rolling"]["average_precision"] for one in metrics]
            # Both are null before the labels of both classes have come.
            if None not in precisions and metrics[0]["samples"] >= MIN_LABELS:
                chart.add(done, Dualstream=precisions[0], without_history=precisions[1])
            if reports.is_due(done):
                cells = ["-" if one is None else f"{one:.3f}" for one in precisions]
                samples = metrics[0]["samples"]
                show(console, f"{done:8,} {samples:8,} {cells[0]:>14} {cells[1]:>9}")
    _alerts(console, payments, bank)
    if None in precisions:
        raise SystemExit("no label of both classes has come; use more rows")
    return Result(
        "Average precision of the last 1,000 labels",
        precisions[0],
        {"without history": precisions[1]},
        chart,
        is_error=False,
    )


def _alerts(console: Console, payments: Sequence[Row], bank: Bank) -> None:
    """The payments of the last whole day that alerted, the most probable first."""
    day = payments[-1]["at"].date() - timedelta(days=1)
    served = zip(bank.probabilities, bank.alerts, payments, strict=True)
    todays = [one for one in served if one[2]["at"].date() == day]
    alarms = sorted((one for one in todays if one[1]), key=lambda one: -one[0])
    show(console, f"\nAlerts of {day}, when none of its labels was known:")
    show(console, "probability   time    card   terminal   amount   in truth")
    for chance, _, row in alarms:
        show(
            console,
            f"{chance:11.3f}   {row['at']:%H:%M} {row['card']:>7} {row['terminal']:>10} "
            f"{float(row['amount']):8.2f}   {'fraud' if row['fraud'] else '-'}",
        )
    hits, frauds = (sum(row["fraud"] for _, _, row in rows) for rows in (alarms, todays))
    show(
        console,
        f"{hits} of the {frauds} frauds of the day's {len(todays)} payments are among "
        f"the {len(alarms)} alerts.",
    )


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> Result:
    return start(__doc__ or "", 6_000, run, arguments, console)


if __name__ == "__main__":
    main()
