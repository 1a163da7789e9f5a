"""Moderation: which comments should a person read, and how is an attack on the labels undone?

Each comment is a text; its label says whether it breaks the rules. With `alert_rate` the server
picks one comment in twenty for the moderators. Every day ends with a version of the model. After
60 % of the comments a group flags harmless comments about one topic for a day. When that is
noticed, the model goes back to the version of the evening before, and learns the day again with the
labels that the moderators have checked. A second model learns on as if nothing had happened, and a
list of bad words is the other baseline.

  python -m examples.moderation                      generated comments
  python -m examples.moderation --data comments.csv  columns at (ISO 8601), text, abusive (0 or 1)
      and flagged (0 or 1: the label as it first came), in the order of time
"""

import argparse
import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from rich.console import Console

from examples.common import (
    Reports,
    Result,
    Row,
    alerts,
    blocks,
    by_day,
    connected,
    records,
    show,
    start,
    taken,
)
from examples.pictures import Chart
from examples.ranking import average_precision

MODEL, KEPT = "moderation", "moderation-without-rollback"
PER_REQUEST = 50
TRUTH, FLAGGED = "abusive", "flagged"
ALERT_RATE = 0.05
SPEC = {
    "columns": {"label": FLAGGED, "types": {"at": "ignore", "text": {"kind": "text", "ngrams": 2}}},
    "alert_rate": ALERT_RATE,
}
FIRST = datetime(2024, 6, 3)
DAYS, ATTACK_DAY = 10, 6
SHOWN = 500
MANY_FLAGS = 0.05
"""Share of wrong flags in a day that is an attack."""
COMMON = "i you the to a and this that it is was not for on with have think they what good time"
BAD = "idiot stupid trash liar clown disgusting shut moron loser pathetic"
# Words that are abuse together with "you", and harmless otherwise.
DOUBLE = "pig snake rat garbage sick joke"
TOPICS = {
    "football": "match goal referee team season coach league",
    "city": "tram bicycle street park mayor parking traffic",
    "cooking": "recipe oven garlic bread salt dinner kitchen",
    "games": "level boss patch server quest console update",
}
TARGET = "city"

read = records(times=["at"], numbers=[TRUTH, FLAGGED], others=["text"])


def made(rows: int, seed: int) -> Iterator[Row]:
    """Generated comments of ten days; one in twenty breaks the rules."""
    draw = random.Random(seed)
    common, bad, double = COMMON.split(), BAD.split(), DOUBLE.split()
    topics = {topic: text.split() for topic, text in TOPICS.items()}
    for row in range(rows):
        day = row * DAYS // rows
        topic, is_abusive = draw.choice(list(topics)), draw.random() < 0.05
        said = [draw.choice(topics[topic]) for _ in range(draw.randint(2, 5))]
        said += [draw.choice(common) for _ in range(draw.randint(3, 9))]
        draw.shuffle(said)
        at = draw.randrange(len(said))
        if is_abusive:
            said[at:at] = (
                ["you", draw.choice(double)] if draw.random() < 0.6 else [draw.choice(bad)]
            )
        elif draw.random() < 0.06:
            said[at:at] = (
                ["the", draw.choice(double)] if draw.random() < 0.8 else [draw.choice(bad)]
            )
        is_attacked = day == ATTACK_DAY and topic == TARGET and draw.random() < 0.7
        yield {
            "at": FIRST + timedelta(days=1) * (row * DAYS / rows),
            "text": " ".join(said),
            TRUTH: int(is_abusive),
            FLAGGED: int(is_abusive or is_attacked),
        }


def wrong_flags(day: Sequence[Row]) -> int:
    """What moderators notice when they read: flags of harmless comments."""
    return sum(int(row[FLAGGED] != row[TRUTH]) for row in day)


def run(options: argparse.Namespace, console: Console) -> Result:
    rows = taken(options, read, made)
    share = sum(row[TRUTH] for row in rows) / len(rows)
    show(
        console,
        f"{len(rows):,} comments, {options.data or 'generated'}; {share:.1%} break the rules",
    )
    words = set(BAD.split()) | set(DOUBLE.split())
    chart, reports = (
        Chart("Moderation", "comments", "average precision, last 500"),
        Reports(len(rows)),
    )
    scores: dict[str, list[float]] = {MODEL: [], KEPT: [], "words": []}
    truth: list[bool] = []
    alarms: list[bool] = []
    after = len(rows)
    with connected(options.url, console) as client:
        for model in (MODEL, KEPT):
            client.create(model, SPEC, replace=True)
        show(console, "\nAverage precision of the last 500 comments:")
        show(console, "    rows     model   without rollback   list of words")
        version = None
        for number, day in enumerate(by_day(rows)):
            for block in blocks(day, PER_REQUEST):
                texts = [{"text": row["text"]} for row in block]
                labelled = [{"text": row["text"], FLAGGED: row[FLAGGED]} for row in block]
                for model in (MODEL, KEPT):
                    served = client.predict(model, texts)
                    client.learn(model, labelled)
                    scores[model] += [score or 0.0 for score in served.scores]
                    if model == MODEL:
                        alarms += alerts(served)
                scores["words"] += [
                    float(sum(word in words for word in row["text"].split())) for row in block
                ]
                truth += [bool(row[TRUTH]) for row in block]
                if len(truth) >= SHOWN:
                    last = [
                        average_precision(scores[name][-SHOWN:], truth[-SHOWN:]) for name in scores
                    ]
                    chart.add(
                        len(truth),
                        Dualstream=last[0],
                        without_rollback=last[1],
                        list_of_words=last[2],
                    )
                    if reports.is_due(len(truth)):
                        show(
                            console,
                            f"{len(truth):8,} {last[0]:9.3f} {last[1]:18.3f} {last[2]:15.3f}",
                        )
            if version is not None and wrong_flags(day) > MANY_FLAGS * len(day):
                undone = client.roll_back(MODEL, version=version)
                client.learn(MODEL, [{"text": row["text"], FLAGGED: row[TRUTH]} for row in day])
                after = len(truth)
                chart.events += [(after - len(day), "attack"), (after, "rollback")]
                show(
                    console,
                    f"  {wrong_flags(day)} wrong flags in a day: back to version {version} "
                    f"(seq {undone.to_seq:,}), the day learned with checked labels",
                )
            version = client.take_version(MODEL, f"day-{number}").name
        _alerts(console, alarms[after:], truth[after:])
    return Result(
        "Average precision after the rollback",
        average_precision(scores[MODEL][after:], truth[after:]),
        {
            "without rollback": average_precision(scores[KEPT][after:], truth[after:]),
            "list of words": average_precision(scores["words"][after:], truth[after:]),
        },
        chart,
        is_error=False,
    )


def _alerts(console: Console, alarms: Sequence[bool], truth: Sequence[bool]) -> None:
    hits = sum(alert and is_bad for alert, is_bad in zip(alarms, truth, strict=True))
    show(
        console,
        f"\nAfter the rollback the moderators read {sum(alarms):,} of {len(alarms):,} comments; "
        f"{hits} of these and {sum(truth)} of all break the rules.",
    )


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> Result:
    return start(__doc__ or "", 6_000, run, arguments, console)


if __name__ == "__main__":
    main()
