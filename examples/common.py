"""Command-line flags, a temporary server and printed reports that all examples use."""

import argparse
import csv
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

from rich.console import Console

from dualstream.client import Client
from dualstream.service.cli.demo.server_process import ServerProcess

Row = dict[str, Any]
"""A row as people have it: columns by name, the label among them."""
R = TypeVar("R")

REPORTS = 8
LISTED = 6
MIN_ROWS = 200


def flags(description: str, rows: int) -> argparse.ArgumentParser:
    """The flags of every example; `rows` is the default number of generated rows."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, metavar="FILE", help="file of rows; default: generated rows"
    )
    parser.add_argument("--rows", type=int, help=f"maximum number of rows (generated: {rows:,})")
    parser.add_argument("--seed", type=int, default=0, help="seed of generated rows")
    parser.add_argument("--url", help="URL of a running server; default: a temporary server")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the rows as CSV, and end")
    parser.set_defaults(made=rows)
    return parser


def taken(
    options: argparse.Namespace,
    read: Callable[[Path], Iterator[R]],
    make: Callable[[int, int], Iterator[R]],
) -> list[R]:
    """The rows of the file, or those that `make(rows, seed)` generates. Exits after --write."""
    if options.data is not None:
        rows = list(islice(read(options.data), options.rows))
    else:
        rows = list(make(options.made if options.rows is None else options.rows, options.seed))
    if len(rows) < MIN_ROWS:
        raise SystemExit(f"{len(rows)} rows are too few; use at least {MIN_ROWS}")
    if options.write is not None:
        _write(options.write, cast(list[Row], rows))
        raise SystemExit(0)
    return rows


def _write(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as a CSV file."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _text(value) for name, value in row.items()} for row in rows)


def _text(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def table(path: Path) -> Iterator[dict[str, str]]:
    """The records of a CSV file with a header; quotes and surrounding spaces are allowed."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        yield from csv.DictReader(file, skipinitialspace=True)


@contextmanager
def connected(url: str | None, console: Console) -> Iterator[Client]:
    """A client of the server at `url`, or of a temporary server that stops with the block."""
    with ExitStack() as stack:
        if url is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dualstream-example-"))
            store = f"sqlite:///{Path(folder) / 'example.db'}"
            # Not its warnings, such as of requests that wait until kernels are compiled.
            url = stack.enter_context(ServerProcess(store, ["--log-level", "error"])).url
        console.print(f"server: {url}", style="dim", highlight=False)
        yield stack.enter_context(Client(url))


def learn(
    rows: Sequence[Row],
    send: Callable[[Sequence[Row]], object],
    report: Callable[[], None],
    rows_per_request: int = 250,
) -> None:
    """Send the stream in blocks, and report eight times."""
    reported = 0
    for first in range(0, len(rows), rows_per_request):
        send(rows[first : first + rows_per_request])
        due = REPORTS * min(len(rows), first + rows_per_request) // len(rows)
        if due > reported:
            reported = due
            report()


def show(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def show_drift(console: Console, client: Client, model: str) -> None:
    """Rising drift events among the last 64 events."""
    show(console, f"\nDrift events with rising losses (GET /models/{model}/timeline):")
    events = client.timeline(model).events
    for detector, counts in client.metrics(model)["drift"].items():
        rows = [e["rows"] for e in events if e["rising"] and e["detector"] == detector]
        positions = ", ".join(f"{row:,}" for row in rows[:LISTED])
        show(
            console,
            f"  {detector}: {counts['rising']}"
            + (f", at row {positions}" if rows else "")
            + (f", ..., {rows[-1]:,}" if len(rows) > LISTED else ""),
        )


def show_shares(console: Console, client: Client, model: str) -> str:
    """Print the three largest shares. Returns the best member that has a certificate."""
    members = sorted(client.members(model).members, key=lambda member: -member.weight)
    show(console, f"\nMembers with the largest shares (GET /models/{model}/members):")
    for member in members[:3]:
        show(console, f"  {member.weight:6.1%}   {member.name}")
    return next(member.name for member in members if member.has_certificate)


def ratio(error: float, baselines: Iterable[float]) -> str:
    """A sentence that compares a model's error with those of its baselines."""
    best = min(baselines)
    if error < best:
        return f"The model's error is {1 - error / best:.0%} below the better baseline's."
    return "The model does NOT beat the better baseline on this stream."


def errors(metrics: Mapping[str, Any], name: str) -> tuple[float, list[float]]:
    """The error `name` of the model and of its baselines."""
    return metrics[name], [baseline[name] for baseline in metrics["baselines"].values()]
