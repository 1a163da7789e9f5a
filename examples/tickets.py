"""Tickets: which team should answer a message, and which messages can be routed without a person?

A ticket is a text and the channel by which it came. Its label is the team that has solved it. A new
team, for a new product, begins to solve tickets after 60 %. With `intervals` each prediction has a
set of teams that holds the right one in nine of ten tickets: a ticket whose set has one team is
routed at once. The baseline is a scikit-learn model (TF-IDF and logistic regression) that is
trained every night on all tickets so far.

  python -m examples.tickets                     generated tickets
  python -m examples.tickets --data tickets.csv  columns at (ISO 8601), channel, text and team, in
      the order of time
"""

import argparse
import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

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
from examples.nightly import NightlyText
from examples.pictures import Chart

MODEL = "tickets"
PER_REQUEST = 20
LABEL = "team"
SPEC = {
    "task": "multiclass",
    "columns": {"label": LABEL, "types": {"at": "ignore", "channel": "category", "text": "text"}},
    "intervals": {"coverage": 0.9},
}
FIRST = datetime(2024, 4, 1, 8)
DAYS = 12
NEW_TEAM_AFTER = 0.6
COMMON = "hello please i my the a is not can you help since today again with for and it thanks"
TEAMS = {
    "billing": "invoice charged twice payment refund card bank amount receipt vat price money",
    "login": "password login account locked code reset email link sign expired access token",
    "shipping": "parcel order delivery address late tracking courier box arrived lost return",
    "app": "app crash screen update phone button slow error version freeze install loading",
    "sales": "offer price plan upgrade discount licence contract quote team trial seats order",
    "privacy": "data delete account export consent email gdpr address request copy profile",
    "wallet": "wallet payment code phone app card points top balance transfer shop scan",
}
CHANNELS = ("mail", "chat", "form")

read = records(times=["at"], others=["channel", "text", LABEL])


def made(rows: int, seed: int) -> Iterator[Row]:
    """Generated tickets of twelve days; the words of the teams overlap."""
    draw = random.Random(seed)
    words = {team: text.split() for team, text in TEAMS.items()}
    common = COMMON.split()
    old = list(TEAMS)[:-1]
    sizes = [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    for row in range(rows):
        team = draw.choices(old, sizes)[0]
        if row > NEW_TEAM_AFTER * rows and draw.random() < 0.2:
            team = "wallet"
        said = [draw.choice(words[team]) for _ in range(draw.randint(1, 4))]
        said += [draw.choice(common) for _ in range(draw.randint(4, 12))]
        if draw.random() < 0.4:
            said += [draw.choice(words[draw.choice(old)])]
        draw.shuffle(said)
        # Sales mostly come in the form.
        channel = "form" if team == "sales" and draw.random() < 0.6 else draw.choice(CHANNELS)
        at = FIRST + timedelta(days=1) * (row * DAYS // rows)
        at += timedelta(hours=10) * (row * DAYS % rows / rows)
        yield {"at": at, "channel": channel, "text": " ".join(said), LABEL: team}


def run(options: argparse.Namespace, console: Console) -> Result:
    rows = taken(options, read, made)
    teams = len({row[LABEL] for row in rows})
    show(console, f"{len(rows):,} tickets for {teams} teams, {options.data or 'generated'}")
    losses, chart = Losses("model", "nightly", last=500), Chart("Tickets", "tickets", "errors, %")
    if options.data is None:
        chart.events.append((NEW_TEAM_AFTER * len(rows), "a new team"))
    nightly, reports = NightlyText("text", LABEL), Reports(len(rows))
    alone = right = after_first_day = done = 0
    with connected(options.url, console) as client:
        client.create(MODEL, SPEC, replace=True)
        show(console, "\nErrors of the last 500 tickets:")
        show(console, "    rows     model   scikit-learn, nightly")
        for day in by_day(rows):
            for block in blocks(day, PER_REQUEST):
                served = client.predict(MODEL, without(block, LABEL))
                client.learn(MODEL, block)
                done += len(block)
                if day[0] is rows[0]:
                    continue  # no night has passed
                answers = zip(
                    block, served.labels, nightly.predict(block), served.sets, strict=True
                )
                for row, label, other, teams_of_row in answers:
                    losses.add(model=label != row[LABEL], nightly=other != row[LABEL])
                    is_alone = teams_of_row is not None and len(teams_of_row) == 1
                    alone += is_alone
                    right += is_alone and label == row[LABEL]
                    after_first_day += 1
                last = losses.rolling()
                chart.add(
                    done,
                    **{
                        "Dualstream": 100.0 * last["model"],
                        "scikit-learn every night": 100.0 * last["nightly"],
                    },
                )
                if reports.is_due(done):
                    show(console, f"{done:8,} {last['model']:9.1%} {last['nightly']:23.1%}")
            nightly.learn(day)
        kept = client.metrics(MODEL)["intervals"][0]
    show(
        console,
        f"\nThe set of teams has the right one for {kept['coverage']:.1%} of the tickets, and "
        f"{kept['mean_set_size']:.2f} teams on average.",
        f"{alone / after_first_day:.0%} of the tickets have a set of one team and are routed at "
        f"once; {right / max(alone, 1):.1%} of these go to the right team.",
    )
    return Result(
        "Errors, % of the tickets from the second day on",
        100.0 * losses.mean("model"),
        {"scikit-learn every night": 100.0 * losses.mean("nightly")},
        chart,
    )


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> Result:
    return start(__doc__ or "", 3_000, run, arguments, console)


if __name__ == "__main__":
    main()
