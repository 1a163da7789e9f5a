"""Spam detection: raw text and late labels.

Each message is predicted when it arrives, and the server remembers the row. Its label arrives some
hundred messages later, in any order, and then the row is learned. Errors count the label as served,
not as the current model predicts it.

  python -m examples.spam                           generated messages
  python -m examples.spam --data SMSSpamCollection  UCI's SMS Spam Collection: a message a line,
      `ham` or `spam`, a tabulator, the text
"""

import argparse
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from dualstream.client import Client
from examples.common import REPORTS, connected, errors, flags, ratio, show, show_shares, taken

Sample = tuple[dict[str, str], int]
"""A message, and its label, which arrives later."""
MODEL, AT_ONCE = "spam", "spam-labels-at-once"
PER_REQUEST = 25
ARCHIVE = 100
SPEC = {"columns": {"types": {"text": {"kind": "text", "ngrams": 2}}}}
"""The server makes features of words and of pairs of words."""
HAM = "i you the to a and me in my it so ok just get how when up what not go if home now we at do "
HAM += "know like good got come time day love will going want one need back sorry see still later"
SPAM = "call free txt claim prize mobile your now stop to text reply win urgent cash £ won new tone"
LATER = "parcel delivery fee link account verify bank update suspended track https confirm"


def read(path: Path) -> Iterator[Sample]:
    """The messages of UCI's collection, in file order."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            label, _, text = line.rstrip("\n").partition("\t")
            yield {"text": text}, int(label == "spam")


def made(rows: int, seed: int) -> Iterator[Sample]:
    """Generated messages, 13 % spam. In the second half, half of the spam is of a new kind."""
    draw = random.Random(seed)
    kinds = [text.split() for text in (HAM, SPAM, LATER)]
    for row in range(rows):
        is_spam = draw.random() < 0.13
        kind = 0 if not is_spam else 2 if row > rows / 2 and draw.random() < 0.5 else 1
        said = [draw.choice(kinds[kind]) for _ in range(draw.randint(4, 14))]
        # Spam also has ordinary words, and ordinary messages also mention prizes and parcels.
        said += [draw.choice(kinds[0]) for _ in range(draw.randint(2, 8))]
        if draw.random() < (0.7 if is_spam else 0.05):
            said.append(str(draw.randrange(10**4, 10**11)))
        if not is_spam and draw.random() < 0.2:
            said.append(draw.choice(kinds[1] + kinds[2]))
        draw.shuffle(said)
        text = " ".join(said)
        yield {"text": text}, int(is_spam)


class Mailbox:
    """Predicts messages, and learns each label 0.5 to 1.5 times `delay` messages later."""

    def __init__(self, client: Client, delay: int, seed: int) -> None:
        self._client, self._delay, self._draw = client, delay, random.Random(seed)
        self._due: dict[str, tuple[float, int]] = {}
        self.came = self.blocked_ham = self.passed_spam = self.spam = 0

    def take(self, messages: Sequence[Sample]) -> None:
        ids = [f"message-{self.came + index}" for index in range(len(messages))]
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


def run(options: argparse.Namespace, console: Console) -> None:
    messages = taken(options, read, made)
    show(
        console,
        f"{len(messages):,} messages, {options.data or 'generated'}; "
        f"each label arrives about {options.delay} messages later",
    )
    with connected(options.url, console) as client:
        for model in (MODEL, AT_ONCE):
            client.create(model, SPEC, replace=True)
            client.learn(model, *zip(*messages[:ARCHIVE], strict=True))
        show(console, f"The first {ARCHIVE} are labelled, and are learned at once.")
        messages = messages[ARCHIVE:]
        mailbox = Mailbox(client, options.delay, options.seed)
        show(console, "\n   total   labels to come    undetected spam   ham taken for spam")
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
    show(console, f"\nLargest weights of {member} (GET /models/{MODEL}/weights):")
    for weight in client.weights(MODEL, top=8, member=member).weights:
        show(console, f"  {weight.weight:+8.3f}   {weight.name}")
    late, baselines = errors(client.metrics(MODEL)["since_start"], "error_rate")
    at_once, _ = errors(client.metrics(AT_ONCE)["since_start"], "error_rate")
    show(
        console,
        f"\nErrors as served, of labelled messages: {late:.2%}; "
        f"calling nothing spam {baselines[0]:.2%}. {ratio(late, baselines)}",
        f"With immediate labels the error rate is {at_once:.2%} (model {AT_ONCE}); the difference "
        "is the cost of late labels.",
        "Rows without labels wait in the store, by default for one day.",
    )


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> None:
    parser = flags(__doc__ or "", 5_000)
    parser.add_argument("--delay", type=int, default=200, help="messages until a label (200)")
    run(parser.parse_args(arguments), console or Console())


if __name__ == "__main__":
    main()
