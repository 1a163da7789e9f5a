"""What the examples share: their flags, a server to talk to, and what they print of a model."""

import argparse
import csv
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console

from dualstream.client import Client
from dualstream.service.cli.demo.server_process import ServerProcess

Sample = tuple[dict[str, Any], Any]
"""A row by the names of its features, and its label."""

REPORTS = 8
# A relative gap of which nobody would say that it pins the weights down.
LOOSE = 0.5
LISTED = 6
FEWEST = 200


def flags(description: str, rows: int) -> argparse.ArgumentParser:
    """The flags that every example has; `rows` is how many the generator makes unasked."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, metavar="FILE", help="else rows are made up")
    parser.add_argument("--rows", type=int, help=f"at most so many (made up: {rows:,})")
    parser.add_argument("--seed", type=int, default=0, help="of what is made up")
    parser.add_argument("--url", help="of a running server; else one runs for as long as this does")
    parser.set_defaults(made=rows)
    return parser


def taken(
    given: argparse.Namespace,
    read: Callable[[Path], Iterator[Sample]],
    make: Callable[[int, int], Iterator[Sample]],
) -> list[Sample]:
    """The samples of the file, or made up by `make(rows, seed)`."""
    if given.data is not None:
        samples = list(islice(read(given.data), given.rows))
    else:
        samples = list(make(given.made if given.rows is None else given.rows, given.seed))
    if len(samples) < FEWEST:
        raise SystemExit(f"{len(samples)} rows are too few to show anything, take {FEWEST}")
    return samples


def table(path: Path) -> Iterator[dict[str, str]]:
    """The records of a CSV file by its header; fields in quotes and spaces around them are fine."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        yield from csv.DictReader(file, skipinitialspace=True)


@contextmanager
def connected(url: str | None, console: Console) -> Iterator[Client]:
    """A client of the server at `url`, or of one in a temporary folder that ends with the block."""
    with ExitStack() as held:
        if url is None:
            folder = held.enter_context(tempfile.TemporaryDirectory(prefix="dualstream-example-"))
            store = f"sqlite:///{Path(folder) / 'example.db'}"
            url = held.enter_context(ServerProcess(store)).url
        console.print(f"server: {url}", style="dim", highlight=False)
        yield held.enter_context(Client(url))


def learn(
    client: Client,
    models: Sequence[str],
    samples: Sequence[Sample],
    report: Callable[[], None],
    rows_per_request: int = 250,
) -> None:
    """Learn the stream block by block, each model the same rows, and report eight times."""
    reported = 0
    for first in range(0, len(samples), rows_per_request):
        block = samples[first : first + rows_per_request]
        for model in models:
            client.learn(model, [x for x, _ in block], [y for _, y in block])
        due = REPORTS * min(len(samples), first + rows_per_request) // len(samples)
        if due > reported:
            reported = due
            report()


def show(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def show_drift(console: Console, client: Client, model: str) -> None:
    """Where its losses rose, of the last 64 events; that they fall as it learns is no news."""
    show(console, f"\nDrift, where the losses of the model rose (GET /models/{model}/timeline):")
    events = client.timeline(model).events
    for detector, counts in client.metrics(model)["drift"].items():
        rows = [e["rows"] for e in events if e["rising"] and e["detector"] == detector]
        places = ", ".join(f"{row:,}" for row in rows[:LISTED])
        show(
            console,
            f"  {detector}: {counts['rising']}"
            + (f", at row {places}" if rows else "")
            + (f", ..., {rows[-1]:,}" if len(rows) > LISTED else ""),
        )


def show_shares(console: Console, client: Client, model: str) -> str:
    """The three members with the largest shares; the name of the best that has a certificate."""
    told = sorted(client.members(model).members, key=lambda member: -member.weight)
    show(console, f"\nWho is followed (GET /models/{model}/members):")
    for member in told[:3]:
        show(console, f"  {member.weight:6.1%}   {member.name}")
    return next(member.name for member in told if member.has_certificate)


def show_certificate(console: Console, client: Client, model: str, member: str) -> None:
    """What is certain of one learner, and what is not said by it."""
    told = client.certificate(model, member=member)
    if told.relative_gap is None or told.primal is None:
        show(console, f"\n{member} has no certificate yet.")
        return
    kind = "estimated on" if told.estimate else "exact for"
    show(
        console,
        f"\nThe certificate of {member} ({kind} {told.rows:,} rows): its regularised loss there is",
        f"  {told.primal:.4f}, and no weights have one that is smaller by more than "
        f"{told.relative_gap:.0%} of it.",
        "  That is about optimisation alone. How good the predictions are, the errors above tell.",
    )
    if told.relative_gap > LOOSE:
        show(
            console,
            "  So wide a gap says little: who takes large steps follows, and never settles.",
        )


def ratio(error: float, baselines: Iterable[float]) -> str:
    """An honest sentence on a model's error beside those of its baselines."""
    best = min(baselines)
    if error < best:
        return f"The model's error is {1 - error / best:.0%} below the better baseline's."
    return "The model does NOT beat the better baseline on this stream."


def errors(told: Mapping[str, Any], name: str) -> tuple[float, list[float]]:
    """The figure `name` of a part of the metrics: the model's, and those of its baselines."""
    return told[name], [baseline[name] for baseline in told["baselines"].values()]
