"""Churn: which subscribers should be called this month, before they cancel?

On the first day of a month every subscriber is predicted, and the server remembers the row. A
cancellation during the month is a label. Of all others nothing comes, and that is their label: the
prediction has `default_label=0`, which the server learns by itself when the month is over. A month
takes the program a second. In month 7 the basic plan becomes dearer. The baselines are a list by
the fall in use, and a LightGBM model that is trained every month on all months so far.

  python -m examples.churn                    generated months
  python -m examples.churn --data months.csv  columns month, customer, plan, tenure, use, change,
      calls, late and cancels (0 or 1), in the order of months
"""

import argparse
import math
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console

from dualstream.client import Client
from examples.common import (
    Result,
    Row,
    connected,
    probabilities,
    records,
    show,
    start,
    taken,
    without,
)
from examples.nightly import NightlyTrees
from examples.pictures import Chart

MODEL = "churn"
LABEL = "cancels"
CALLED = 0.1
"""Share of the subscribers that are called in a month."""
MONTH_S = 0.3
"""Seconds until the default label; 2,592,000 for thirty days."""
PATIENCE_S = 60.0
NUMBERS = ("tenure", "use", "change", "calls", "late")
SPEC = {
    "columns": {
        "label": LABEL,
        "types": {"month": "ignore", "customer": "ignore", "plan": "category"}
        | dict.fromkeys(NUMBERS, "number"),
    }
}
MONTHS, DEARER_FROM = 12, 7
PLANS = ("basic", "family", "pro")

read = records(numbers=["month", *NUMBERS, LABEL], others=["customer", "plan"])


def made(rows: int, seed: int) -> Iterator[Row]:
    """Generated months; about one subscriber in twelve cancels."""
    draw = random.Random(seed)
    a_month = math.ceil(rows / MONTHS)
    customers: list[Row] = []
    names = 0
    for row in range(rows):
        month, number = divmod(row, a_month)
        if number == len(customers):
            names += 1
            tenure = draw.expovariate(0.05) if month == 0 else 0.0
            plan, use = draw.choice(PLANS), draw.lognormvariate(2.0, 0.6)
            customers.append({"name": f"c{names}", "plan": plan, "tenure": tenure, "use": use})
        customer = customers[number]
        is_leaving = draw.random() < 0.15
        change = draw.gauss(-0.25 if is_leaving else 0.0, 0.25)
        calls = sum(draw.random() < (0.25 if is_leaving else 0.1) for _ in range(5))
        late = int(draw.random() < (0.3 if is_leaving else 0.1))
        logit = (
            -3.6 - 2.0 * change + 0.5 * calls + 0.8 * late + 1.2 * math.exp(-customer["tenure"] / 6)
        )
        # Support calls matter to small users only.
        logit -= 0.4 * calls * (customer["use"] > 9.0)
        if month + 1 >= DEARER_FROM:
            logit += {"basic": 1.8, "family": -0.3, "pro": -0.3}[customer["plan"]]
        cancels = draw.random() < 1.0 / (1.0 + math.exp(-logit))
        yield {
            "month": month + 1,
            "customer": customer["name"],
            "plan": customer["plan"],
            "tenure": round(customer["tenure"], 1),
            "use": round(customer["use"], 2),
            "change": round(change, 3),
            "calls": calls,
            "late": late,
            LABEL: int(cancels),
        }
        customer["tenure"] += 1.0
        customer["use"] = max(0.1, customer["use"] * (1.0 + 0.3 * change))
        if cancels:
            # A new subscriber takes the place.
            names += 1
            plan, use = draw.choice(PLANS), draw.lognormvariate(2.0, 0.6)
            customers[number] = {"name": f"c{names}", "plan": plan, "tenure": 0.0, "use": use}


def predict_month(client: Client, rows: Sequence[Row]) -> list[float]:
    """Predict the subscribers of a month, send the cancellations, wait for the default labels."""
    ids = [f"{row['customer']}-{row['month']}" for row in rows]
    before = client.metrics(MODEL)["rows"]
    served = client.predict_and_remember(
        MODEL,
        without(rows, LABEL),
        ids,
        default_label=0,
        default_after_s=MONTH_S,
        # A cancellation that comes after the month replaces the default label.
        revise=True,
    )
    cancelled: dict[str | int, int] = {
        name: 1 for name, row in zip(ids, rows, strict=True) if row[LABEL]
    }
    if cancelled:
        client.learn_labels(MODEL, cancelled, revise=True)
    began = time.monotonic()
    while client.metrics(MODEL)["rows"] < before + len(rows):
        if time.monotonic() - began > PATIENCE_S:
            raise SystemExit("the server has learned no default labels for a minute")
        time.sleep(0.02)
    return probabilities(served)


def run(options: argparse.Namespace, console: Console) -> Result:
    rows = taken(options, read, made)
    share = sum(row[LABEL] for row in rows) / len(rows)
    show(
        console,
        f"{len(rows):,} subscribers and months, {options.data or 'generated'}; {share:.1%} cancel",
    )
    months: dict[int, list[Row]] = {}
    for row in rows:
        months.setdefault(int(row["month"]), []).append(row)
    trees = NightlyTrees(LABEL, ["plan"], NUMBERS)
    found, could = Counter[str](), 0
    chart = Chart("Churn", "month", "cancellations among those called, %")
    if options.data is None:
        chart.events.append((DEARER_FROM, "the basic plan is dearer"))
    with connected(options.url, console) as client:
        client.create(MODEL, SPEC, replace=True)
        show(
            console,
            f"\nOf {CALLED:.0%} of the subscribers, called by each list, those that cancel:",
        )
        show(console, "   month   cancel   model   LightGBM, monthly   fall in use")
        for month, people in months.items():
            lists = {
                "Dualstream": predict_month(client, people),
                "LightGBM every month": trees.predict(people),
                "fall in use": [-row["change"] for row in people],
            }
            trees.learn(people)
            if people[0] is rows[0]:
                continue  # nothing is learned yet
            called = round(CALLED * len(people))
            hits = {name: _hits(scores, people, called) for name, scores in lists.items()}
            could += called
            found.update(hits)
            for name, count in hits.items():
                chart.lines.setdefault(name, []).append((month, 100.0 * count / called))
            cells = [f"{count} of {called}" for count in hits.values()]
            cancel = sum(row[LABEL] for row in people)
            show(console, f"{month:8} {cancel:8} {cells[0]:>8} {cells[1]:>18} {cells[2]:>13}")
    percent = {name: 100.0 * count / could for name, count in found.items()}
    return Result(
        "Called subscribers that cancel, % from the second month on",
        percent.pop("Dualstream"),
        percent,
        chart,
        is_error=False,
    )


def _hits(scores: Sequence[float], people: Sequence[Row], called: int) -> int:
    """Those that cancel among the `called` largest scores."""
    ranked = sorted(zip(scores, people, strict=True), key=lambda pair: -pair[0])
    return sum(int(row[LABEL]) for _, row in ranked[:called])


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> Result:
    return start(__doc__ or "", 9_600, run, arguments, console)


if __name__ == "__main__":
    main()
