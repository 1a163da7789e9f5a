"""Command-line flags, a temporary server and printed reports that all examples use."""

import argparse
import csv
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import typer
from rich.console import Console

from dualstream.client import BadInput, Client, PredictedMany
from dualstream.service.cli.connection import ending, naming, on_retry, with_scheme
from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.wire.plural import plural
from examples.pictures import SUFFIXES, Chart, draw, load_pyplot

Row = dict[str, Any]
"""A row as people have it: columns by name, the label among them."""
R = TypeVar("R")

REPORTS, POINTS = 8, 80
MIN_ROWS = 200
ROLLING = 1_000


@dataclass(frozen=True)
class Result:
    """What a run has shown: a measure of the model and of its baselines, and their curves."""

    measure: str
    model: float
    baselines: Mapping[str, float]
    chart: Chart
    is_error: bool = True
    """Whether a smaller value is better."""

    @property
    def best_baseline(self) -> float:
        return (min if self.is_error else max)(self.baselines.values())

    @property
    def is_better(self) -> bool:
        """Whether the model beats all baselines."""
        best = self.best_baseline
        return self.model < best if self.is_error else self.model > best

    def sentence(self) -> str:
        others = ", ".join(f"{name} {value:.3g}" for name, value in self.baselines.items())
        ratio = self.model / self.best_baseline
        better = f"{1.0 - ratio:.0%} below the" if self.is_error else f"{ratio:.2f} times the"
        outcome = better if self.is_better else "NOT better than the"
        outcome = f"The model is {outcome} best of these."
        return f"{self.measure}: model {self.model:.3g}; {others}. {outcome}"


Run = Callable[[argparse.Namespace, Console], Result]


def start(
    description: str, rows: int, run: Run, arguments: Sequence[str] | None, console: Console | None
) -> Result:
    """Parse the flags of an example, run it, print its result and draw its picture.

    Errors end it with the messages and exit codes of the `dualstream` command.
    """
    options = _flags(description, rows).parse_args(arguments)
    console = console or Console()
    if options.picture is not None:
        load_pyplot()
    try:
        with ending():
            result = run(options, console)
            show(console, "", result.sentence())
            if options.picture is not None:
                with naming(options.picture):
                    draw(result.chart, options.picture)
            return result
    except typer.Exit as ended:
        raise SystemExit(ended.exit_code) from None


def _flags(description: str, rows: int) -> argparse.ArgumentParser:
    """The flags of every example; `rows` is the default number of generated rows."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, metavar="FILE", help="CSV file of rows; default: generated rows"
    )
    parser.add_argument("--rows", type=int, help=f"maximum number of rows (generated: {rows:,})")
    parser.add_argument("--seed", type=int, default=0, help="seed of generated rows")
    parser.add_argument(
        "--url", type=with_scheme, help="URL of a running server; default: a temporary server"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the rows as CSV, and end")
    parser.add_argument(
        "--picture",
        type=_picture,
        metavar="FILE",
        help="draw the result, as .svg or .png (matplotlib)",
    )
    parser.set_defaults(made=rows)
    return parser


def _picture(name: str) -> Path:
    """The path of a picture, whose suffix names a format of `draw`."""
    path = Path(name)
    if path.suffix not in SUFFIXES:
        raise argparse.ArgumentTypeError(f"{name!r} must end in {' or '.join(SUFFIXES)}")
    return path


def taken(
    options: argparse.Namespace,
    read: Callable[[Path], Iterator[Row]],
    make: Callable[[int, int], Iterator[Row]],
) -> list[Row]:
    """The rows of the file, or those that `make(rows, seed)` generates. Exits after --write."""
    if options.data is not None:
        try:
            with naming(options.data):
                rows = list(islice(read(options.data), options.rows))
        except UnicodeDecodeError:
            raise BadInput(f"{options.data}: no UTF-8 text; save it as CSV in UTF-8") from None
    else:
        rows = list(make(options.made if options.rows is None else options.rows, options.seed))
    if len(rows) < MIN_ROWS:
        raise BadInput(f"{plural(len(rows), 'row')} read; use at least {MIN_ROWS}")
    if options.write is not None:
        with naming(options.write):
            _write(options.write, rows)
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


def records(
    times: Sequence[str] = (), numbers: Sequence[str] = (), others: Sequence[str] = ()
) -> Callable[[Path], Iterator[Row]]:
    """A reader of a CSV file with at least these columns.

    times    ISO 8601
    numbers  whole numbers or decimals
    others   sent as texts, which the server reads; they may be empty
    """

    def read(path: Path) -> Iterator[Row]:
        for line, row in enumerate(table(path), 2):
            missing = [name for name in (*times, *numbers, *others) if row.get(name) is None]
            if missing:
                raise BadInput(f"{path}, line {line}: no column {', '.join(missing)}")
            try:
                typed: Row = {name: datetime.fromisoformat(row[name]) for name in times}
                typed |= {name: _number(row[name]) for name in numbers}
            except ValueError as wrong:
                raise BadInput(f"{path}, line {line}: {wrong}") from None
            yield {name: typed.get(name, text) for name, text in row.items()}

    return read


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() else value


def without(rows: Sequence[Row], *hidden: str) -> list[Row]:
    """The rows without these columns, as they are before their label is known."""
    return [{name: row[name] for name in row if name not in hidden} for row in rows]


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
        yield stack.enter_context(Client(url, on_retry=on_retry(url)))


def blocks(rows: Sequence[Row], size: int) -> Iterator[list[Row]]:
    """Consecutive rows, `size` at a time."""
    for first in range(0, len(rows), size):
        yield list(rows[first : first + size])


def by_day(rows: Sequence[Row], time: str = "at") -> Iterator[list[Row]]:
    """Consecutive rows of one date each."""
    day: list[Row] = []
    for row in rows:
        if day and day[-1][time].date() != row[time].date():
            yield day
            day = []
        day.append(row)
    if day:
        yield day


class Reports:
    """Due at equal distances of a stream, eight times by default."""

    def __init__(self, rows: int, parts: int = REPORTS) -> None:
        self._rows, self._parts, self._reported = rows, parts, 0

    def is_due(self, done: int) -> bool:
        due = self._parts * done // self._rows
        is_due = due > self._reported
        self._reported = max(due, self._reported)
        return is_due


class Losses:
    """Mean losses of several predictors: over all rows, and over the last 1,000."""

    def __init__(self, *names: str, last: int = ROLLING) -> None:
        self._all: dict[str, list[float]] = {name: [] for name in names}
        self._last = {name: deque[float](maxlen=last) for name in names}

    def add(self, **losses: float) -> None:
        for name, loss in losses.items():
            self._all[name].append(loss)
            self._last[name].append(loss)

    def mean(self, name: str) -> float:
        return fmean(self._all[name])

    def rolling(self) -> dict[str, float]:
        return {name: fmean(losses) for name, losses in self._last.items() if losses}


def probabilities(served: PredictedMany) -> list[float]:
    """Probabilities of the positive label."""
    return [chance or 0.0 for chance in served.probabilities or ()]


def alerts(served: PredictedMany) -> list[bool]:
    """Which rows alert, of a model with `alert_rate`."""
    return [bool(alert) for alert in served.alerts or ()]


def intervals(served: PredictedMany) -> list[tuple[float, float] | None]:
    """Intervals of one level; None before the first 20 rows, and where an end is open."""
    return [_interval(one) for one in served.intervals or ()]


def _interval(one: Any) -> tuple[float, float] | None:
    return None if one is None or None in one else (one[0], one[1])


def show(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
