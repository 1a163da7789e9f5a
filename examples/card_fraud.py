"""Card fraud: columns from the past of cards and terminals, labels that arrive a week later.

A payment has a time, a card, a terminal and an amount. `history` in the specification adds what a
single payment does not show: how often its card paid lately, how its amount differs from the
card's mean, how often the terminal's payments were fraud, as far as is known by then. A second
model has the same columns without history. Each payment is predicted when it arrives. Its label
arrives seven days later, as the customer reads the bill.

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
from pathlib import Path

from rich.console import Console

from dualstream.client import Client
from examples.common import REPORTS, Row, connected, flags, show, table, taken

MODEL, PLAIN = "card-fraud", "card-fraud-without-history"
PER_REQUEST = 25
DELAY = timedelta(days=7)
ALERTS = 10
HIDDEN = {"tx", "fraud"}
"""Columns that are no features."""
COLUMNS = {
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
    }
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


def read(path: Path) -> Iterator[Row]:
    """The payments of a CSV file."""
    for row in table(path):
        yield row | {"at": datetime.fromisoformat(row["at"]), "fraud": int(row["fraud"])}


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
        self.probabilities: list[float | None] = []
        """Of all payments, by the model with history."""

    def take(self, payments: Sequence[Row]) -> None:
        self._send_labels(payments[0]["at"] - DELAY)
        ids = [row["tx"] for row in payments]
        rows = [{name: row[name] for name in row if name not in HIDDEN} for row in payments]
        self._client.predict_and_remember(PLAIN, rows, ids)
        served = self._client.predict_and_remember(MODEL, rows, ids)
        self.probabilities += served.probabilities or ()
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


def run(options: argparse.Namespace, console: Console) -> None:
    payments = taken(options, read, made)
    frauds = sum(payment["fraud"] for payment in payments)
    show(
        console,
        f"{len(payments):,} payments, {options.data or 'generated'}; "
        f"{frauds / len(payments):.1%} are fraud; labels arrive {DELAY.days} days later",
    )
    with connected(options.url, console) as client:
        client.create(MODEL, COLUMNS | {"history": HISTORY}, replace=True)
        client.create(PLAIN, COLUMNS, replace=True)
        bank = Bank(client)
        show(console, "\nAverage precision of the last 1,000 labelled payments, as served:")
        show(console, "payments   labels   with history   without")
        reported = 0
        for first in range(0, len(payments), PER_REQUEST):
            bank.take(payments[first : first + PER_REQUEST])
            due = REPORTS * len(bank.probabilities) // len(payments)
            if due > reported:
                reported = due
                _report(console, client, len(bank.probabilities))
        _alerts(console, payments, bank.probabilities)


def _report(console: Console, client: Client, predicted: int) -> None:
    cells = [_precision(client, model) for model in (MODEL, PLAIN)]
    labels = client.metrics(MODEL)["samples"]
    show(console, f"{predicted:8,} {labels:8,} {cells[0]:>14} {cells[1]:>9}")


def _precision(client: Client, model: str) -> str:
    """Average precision of the last 1,000 labels; a dash before both classes have come."""
    precision = client.metrics(model)["rolling"]["average_precision"]
    return "-" if precision is None else f"{precision:.3f}"


def _alerts(
    console: Console, payments: Sequence[Row], probabilities: Sequence[float | None]
) -> None:
    """The payments of the last whole day with the largest probabilities."""
    day = payments[-1]["at"].date() - timedelta(days=1)
    scored = zip(probabilities, payments, strict=True)
    todays = [(chance or 0.0, row) for chance, row in scored if row["at"].date() == day]
    alerts = sorted(todays, key=lambda pair: -pair[0])[:ALERTS]
    show(console, f"\nAlerts of {day}, when none of its labels was known:")
    show(console, "probability   time    card   terminal   amount   in truth")
    for chance, row in alerts:
        show(
            console,
            f"{chance:11.3f}   {row['at']:%H:%M} {row['card']:>7} {row['terminal']:>10} "
            f"{float(row['amount']):8.2f}   {'fraud' if row['fraud'] else '-'}",
        )
    hits, frauds = (sum(row["fraud"] for _, row in rows) for rows in (alerts, todays))
    show(
        console,
        f"{hits} of the {frauds} frauds of the day's {len(todays)} payments are among "
        f"the {len(alerts)} alerts.",
    )


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> None:
    parser = flags(__doc__ or "", 6_000)
    run(parser.parse_args(arguments), console or Console())


if __name__ == "__main__":
    main()
