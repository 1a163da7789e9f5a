"""Common parts of all commands: options, output, errors, exit codes."""

import errno
import inspect
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import IO, Annotated, Any, NoReturn, cast

import httpx
import msgspec
import typer
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text
from typer.core import TyperGroup

from dualstream import __version__
from dualstream.client import BadInput, Client, ClientError, Refused, Unreachable
from dualstream.client.calls import API_KEY_NAME
from dualstream.wire.printable import ESCAPES, printable, printable_json, printable_lines

COMMANDS = (
    "serve config demo new-key create infer models status learn consume predict show metrics"
    " members weights versions rollback sources labels refit resume watch certificate columns"
    " audit export replay dump restore delete"
).split()
"""In the order of the help and of docs/reference/cli.md."""


class _Commands(TyperGroup):
    """The commands; an output that cannot be written is an error message, not a traceback."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in COMMANDS if name in self.commands]

    def main(self, *args: Any, **options: Any) -> Any:
        open_standard_files()
        if sys.__stderr__ is not None and sys.stderr is sys.__stderr__:
            # Without a buffer nothing is left to write when Python exits, which would change the
            # exit code if the disk is full.
            file: Any = io.FileIO(sys.__stderr__.fileno(), "w", closefd=False)
            sys.stderr = io.TextIOWrapper(file, sys.__stderr__.encoding, write_through=True)
        for stream in (sys.stdout, sys.stderr):
            # The encoding may be ASCII. A stream that is closed or replaced stays as it is.
            with suppress(OSError, ValueError):
                if isinstance(stream, io.TextIOWrapper):
                    stream.reconfigure(errors=ESCAPES)
        if _LINK.fullmatch(os.environ.get(_PORT, "")):  # noqa: TID251
            del os.environ[_PORT]  # noqa: TID251
        try:
            try:
                return super().main(*args, **options)
            finally:
                sys.stdout.flush()
        except SystemExit as ended:
            # The reader, such as `head`, has read enough. rich and typer call it a failure.
            if isinstance(ended.__context__, BrokenPipeError):
                ended.code = 0
            raise
        except OSError as wrong:
            if wrong.errno not in _OF_OUTPUT:
                raise
            discard_output()
            if wrong.errno == errno.EPIPE:
                sys.exit(0)
            say_error(f"the output cannot be written: {wrong.strerror}")
            sys.exit(WRONG)


_PORT, _LINK = "DUALSTREAM_PORT", re.compile(r"(tcp|udp|sctp)://\S+")
"""Kubernetes and Docker set this variable to such an address for a service `dualstream`. It is no
setting then."""
_OF_OUTPUT = (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT)


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


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    # Local variables in a traceback may contain API keys.
    pretty_exceptions_show_locals=False,
    help="Learn models from a stream, durably and with a certificate.",
    epilog="Exit codes: 0 done; 1 done, but some rows were refused; 2 it cannot run: wrong options,"
    " files or settings; 3 the server refused; 4 no server answered;"
    " 5 serve: workers keep ending; 130 interrupted.",
)


console = Console()
errors = Console(file=cast(IO[str], _StandardError()))
_PIPED_COLUMNS = 1_000

JSON = Annotated[
    bool, typer.Option("--json", help="Print JSON on standard output, and nothing else.")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dualstream {__version__}")
        raise typer.Exit()


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Dualstream learns models from a stream, durably and with a certificate."""


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
ERRORS_SHOWN = 5
URL = "http://127.0.0.1:8000"


def _with_scheme(url: str) -> str:
    """`localhost:8000` is http://localhost:8000."""
    return url if "://" in url or not url else f"http://{url}"


Url = Annotated[
    str,
    typer.Option(
        "--url", envvar="DUALSTREAM_URL", callback=_with_scheme, help="URL of the server."
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        envvar=API_KEY_NAME,
        show_envvar=True,
        help="API key, if the server requires one.",
    ),
]
Patience = Annotated[
    float,
    typer.Option("--patience", min=0.0, help="Seconds to retry while the server does not respond."),
]
PATIENCE_S = 60.0
"""Of commands that send rows, which a restart of the server should not end."""
SHORT_PATIENCE_S = 5.0


def complete_model(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of the server's models, for shell completion."""
    url, api_key = ctx.params.get("url") or URL, ctx.params.get("api_key")
    try:
        with Client(url, api_key=api_key, patience_s=0.0, timeout_s=1.0) as client:
            return [model.id for model in client.models() if model.id.startswith(incomplete)]
    except (ClientError, httpx.InvalidURL):
        return []


Model = Annotated[str, typer.Argument(help="Id of the model.", autocompletion=complete_model)]


@contextmanager
def connected(
    url: str, api_key: str | None, patience_s: float, as_json: bool = False
) -> Iterator[Client]:
    """A client of the server. Its errors end the command."""
    with ending(as_json):
        said = on_retry(url)
        with Client(url, api_key=api_key, patience_s=patience_s, on_retry=said) as client:
            yield client


def command(
    name: str | None = None, patience_s: float = SHORT_PATIENCE_S
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator of a command whose first parameter is the client of a server.

    Adds the options --url, --api-key and --patience before the last one, --json.
    """
    options = {"url": (URL, Url), "api_key": (None, ApiKey), "patience": (patience_s, Patience)}

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def run(url: str, api_key: str | None, patience: float, **arguments: Any) -> None:
            with connected(url, api_key, patience, arguments["as_json"]) as client:
                function(client, **arguments)

        _, *own, last = inspect.signature(function).parameters.values()
        added = [
            inspect.Parameter(name, last.kind, default=default, annotation=annotation)
            for name, (default, annotation) in options.items()
        ]
        parameters = [one.replace(kind=one.KEYWORD_ONLY) for one in (*own, *added, last)]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return app.command(name)(run)

    return register


def on_retry(url: str) -> Callable[[str, float], None]:
    """Prints once, at the first failure, what is tried and for how long."""
    said: list[str] = []

    def say_once(reason: str, left_s: float) -> None:
        if not said:
            said.append(reason)
            note(f"{url}: {reason}; trying again for {left_s:.0f} s", "yellow")

    return say_once


def number_of(value: float | None) -> str:
    """A number for people; nothing for None."""
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


@contextmanager
def ending(as_json: bool = False) -> Iterator[None]:
    """Turn client errors into messages and exit codes; `as_json` also prints the problem."""
    try:
        yield
    except (BadInput, httpx.InvalidURL) as wrong:
        fail(str(wrong), WRONG)
    except Refused as refused:
        if as_json:
            print_json(refused.problem)
        hint = f"; give it with --api-key or {API_KEY_NAME}" if refused.status == 401 else ""
        say_error(f"{refused.detail.partition(': send ')[0] if hint else refused.detail}{hint}")
        if refused.kind == "invalid-rows":
            show_errors(refused.errors)
        raise typer.Exit(REFUSED) from None
    except Unreachable as unreachable:
        fail(str(unreachable), UNREACHABLE)
    except KeyboardInterrupt:
        fail("interrupted", INTERRUPTED)


def show_errors(errors: Any, of: str = "") -> None:
    """Print the first refused rows."""
    for error in (errors or ())[:ERRORS_SHOWN]:
        location = f"line {error['line']}" if "line" in error else f"row {error['index']}"
        where = f"{error['pointer']}: " if error.get("pointer") else ""
        say_error(f"  {of}{location}: {where}{error['reason']}")
