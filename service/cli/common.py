"""Common parts of all commands: output, errors, exit codes."""

import os
import sys
from contextlib import suppress
from typing import IO, Annotated, Any, NoReturn, cast

import msgspec
import typer
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from dualstream.wire.printable import printable, printable_json, printable_lines


def open_standard_files() -> None:
    """Open /dev/null for standard files that the caller has closed.

    Otherwise the next file, such as the store, gets the number of standard output.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or open(os.devnull, "w")
    sys.stderr = sys.stderr or open(os.devnull, "w")


def discard_output() -> None:
    """Write nothing to standard output from now on, also not when Python exits."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def announce(line: str) -> None:
    """Print a line of a server, which goes on when its output cannot be written."""
    try:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except OSError:
        discard_output()


class _StandardError:
    """Standard error for messages. A command goes on when they cannot be written."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)

    def write(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


console = Console()
errors = Console(file=cast(IO[str], _StandardError()))
_PIPED_COLUMNS = 1_000

JSON = Annotated[
    bool, typer.Option("--json", help="Print JSON on standard output, and nothing else.")
]


class Table(RichTable):
    """Table whose cells are texts: without markup, and with control characters escaped."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row of texts."""
        super().add_row(*(Text(printable(cell)) for cell in cells), **options)


def say(line: str) -> None:
    """Print a line for people, without markup."""
    console.print(printable_lines(line), highlight=False, markup=False, soft_wrap=True)


def note(line: str, style: str | None = None) -> None:
    """As `say`, on standard error."""
    text = printable_lines(line)
    errors.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def show_table(table: RichTable) -> None:
    """Print a table, as wide as the terminal; without a terminal, one line a row."""
    (console if console.is_terminal else Console(width=_PIPED_COLUMNS)).print(table)


def print_json(document: Any) -> None:
    """Print one JSON document for programs."""
    typer.echo(printable_json(msgspec.json.encode(document).decode()))


def report(as_json: bool, document: Any, *shown: str | RichTable) -> None:
    """Print the document with --json, else lines and tables for people."""
    if as_json:
        print_json(document)
        return
    for one in shown:
        if isinstance(one, str):
            say(one)
        else:
            show_table(one)


def fail(reason: str, code: int = 2) -> NoReturn:
    """Print an error and exit."""
    say_error(reason)
    raise typer.Exit(code)


def say_error(reason: str) -> None:
    note(reason, "red")


# Exit codes, documented in docs/reference/cli.md.
SOME_REFUSED, WRONG, REFUSED, UNREACHABLE, ENDED, INTERRUPTED = 1, 2, 3, 4, 5, 130


def number_of(value: float | None) -> str:
    """A number for people; nothing for None."""
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
