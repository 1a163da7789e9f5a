"""Is this message spam? Text, and labels that come late.

Each message is predicted when it comes in, and the server remembers the row. People report what it
was some hundred messages later and in no order, and only then is it learned. What is counted as an
error is what was served, not what the model would say by now.

  python -m examples.spam                           made up, in the same shape
  python -m examples.spam --data SMSSpamCollection  UCI's SMS Spam Collection: a message a line,
      `ham` or `spam`, a tabulator, the text
"""

import argparse
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from dualstream.client import Client
from examples.common import (
    REPORTS,
    Sample,
    connected,
    errors,
    flags,
    ratio,
    show,
    show_shares,
    taken,
)

MODEL, AT_ONCE = "spam", "spam-labels-at-once"
PER_REQUEST = 25
ARCHIVE = 100
WORD = re.compile(r"[a-z']+|[£$€]|\d+|!")
HAM = "i you the to a and me in my it so ok just get how when up what not go if home now we at do "
HAM += "know like good got come time day love will going want one need back sorry see still later"
SPAM = "call free txt claim prize mobile your now stop to text reply win urgent cash £ won new tone"
LATER = "parcel delivery fee link account verify bank update suspended track https confirm"


def words(text: str) -> dict[str, float]:
    """A message by its words: long numbers are told by their length, shouting by a feature."""
    found = {}
    for word in WORD.findall(text.lower()):
        name = f"digits-{min(len(word), 12)}" if word.isdigit() else word
        found[f"word={name}"] = 1.0
    found["capitals"] = sum(letter.isupper() for letter in text) / max(1, len(text))
    return found


def read(path: Path) -> Iterator[Sample]:
    """The messages of UCI's collection, in its order."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            label, _, text = line.rstrip("\n").partition("\t")
            yield words(text), int(label == "spam")


def made(rows: int, seed: int) -> Iterator[Sample]:
    """Messages of which 13 % are spam; from the middle on half of that has a new kind of text."""
    draw = random.Random(seed)
    kinds = [text.split() for text in (HAM, SPAM, LATER)]
    for row in range(rows):
        is_spam = draw.random() < 0.13
        kind = 0 if not is_spam else 2 if row > rows / 2 and draw.random() < 0.5 else 1
        said = [draw.choice(kinds[kind]) for _ in range(draw.randint(4, 14))]
        # Spam is written in ordinary words, too, and people also write of prizes and parcels.
        said += [draw.choice(kinds[0]) for _ in range(draw.randint(2, 8))]
        if draw.random() < (0.7 if is_spam else 0.05):
            said.append(str(draw.randrange(10**4, 10**11)))
        if not is_spam and draw.random() < 0.2:
            said.append(draw.choice(kinds[1] + kinds[2]))
        draw.shuffle(said)
        text = " ".join(said)
        yield words(text.upper() if is_spam and draw.random() < 0.2 else text), int(is_spam)


class Mailbox:
    """Messages come in, are judged, and are reported `delay` messages later, give or take half."""

    def __init__(self, client: Client, delay: int, seed: int) -> None:
        self._client, self._delay, self._draw = client, delay, random.Random(seed)
        self._due: dict[str, tuple[float, int]] = {}
        self.came = self.blocked_ham = self.passed_spam = self.spam = 0

    def take(self, messages: Sequence[Sample]) -> None:
        ids = [f"message-{self.came + place}" for place in range(len(messages))]
        rows = [x for x, _ in messages]
        served = self._client.predict_and_remember(MODEL, rows, ids)
        for name, label, (_, y) in zip(ids, served.labels, messages, strict=True):
            self.spam += y
            self.passed_spam += y == 1 and label != 1
            self.blocked_ham += y == 0 and label == 1
            wait = self._delay * self._draw.uniform(0.5, 1.5)
            self._due[name] = (self.came + wait, y)
        self.came += len(messages)
        self._report_what_is_due()

    def _report_what_is_due(self) -> None:
        due = sorted((at, name) for name, (at, _) in self._due.items() if at <= self.came)
        if due:
            labels: dict[str | int, int] = {name: self._due.pop(name)[1] for _, name in due}
            self._client.learn_labels(MODEL, labels)

    @property
    def waiting(self) -> int:
        return len(self._due)


def run(given: argparse.Namespace, console: Console) -> None:
    messages = taken(given, read, made)
    show(
        console,
        f"{len(messages):,} messages, {given.data or 'made up'}; "
        f"each label comes about {given.delay} messages later",
    )
    with connected(given.url, console) as client:
        for model in (MODEL, AT_ONCE):
            client.create(model, {}, replace=True)
            client.learn(model, *zip(*messages[:ARCHIVE], strict=True))
        show(console, f"The first {ARCHIVE} were sorted by hand, and are learned at once.")
        messages = messages[ARCHIVE:]
        mailbox = Mailbox(client, given.delay, given.seed)
        show(console, "\n    came   labels to come   spam let through   ham taken for spam")
        reported = 0
        for first in range(0, len(messages), PER_REQUEST):
            block = messages[first : first + PER_REQUEST]
            mailbox.take(block)
            client.learn(AT_ONCE, [x for x, _ in block], [y for _, y in block])
            due = REPORTS * mailbox.came // len(messages)
            if due > reported:
                reported = due
                _report(console, mailbox)
        _verdict(console, client)


def _report(console: Console, mailbox: Mailbox) -> None:
    passed = f"{mailbox.passed_spam} of {mailbox.spam}"
    blocked = f"{mailbox.blocked_ham} of {mailbox.came - mailbox.spam}"
    show(console, f"{mailbox.came:8,} {mailbox.waiting:16,} {passed:>18} {blocked:>20}")


def _verdict(console: Console, client: Client) -> None:
    member = show_shares(console, client, MODEL)
    show(console, f"\nWhat weighs most in {member} (GET /models/{MODEL}/weights):")
    for weight in client.weights(MODEL, top=8, member=member).weights:
        show(console, f"  {weight.weight:+8.3f}   {weight.name}")
    late, baselines = errors(client.metrics(MODEL)["since_start"], "error_rate")
    at_once, _ = errors(client.metrics(AT_ONCE)["since_start"], "error_rate")
    show(
        console,
        f"\nErrors as served, of the messages that have a label by now: {late:.2%}; "
        f"calling nothing spam {baselines[0]:.2%}. {ratio(late, baselines)}",
        f"With every label at once it would have been {at_once:.2%} (model {AT_ONCE}): the rest is "
        "what late labels cost.",
        "Rows whose labels are still to come wait in the store, for a day if nothing else is set.",
    )


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> None:
    parser = flags(__doc__ or "", 5_000)
    parser.add_argument("--delay", type=int, default=200, help="messages until a label (200)")
    run(parser.parse_args(arguments), console or Console())


if __name__ == "__main__":
    main()
