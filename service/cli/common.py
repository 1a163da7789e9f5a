"""What all commands share: the application, how they speak, how they end."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import httpx
import msgspec
import typer
from rich.console import Console

from dualstream.client import BadInput, Client, ClientError, Refused, Unreachable
from dualstream.client.calls import API_KEY_NAME

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    # Among the variables of a traceback would be keys.
    pretty_exceptions_show_locals=False,
    help="Learn linear models from a stream, durably and with a certificate.",
    epilog="Exit codes: 0 done; 1 done, but for rows that were refused; 2 it cannot be done as it"
    " was asked for; 3 the server refused; 4 no server answered; 130 interrupted.",
)
console = Console()
errors = Console(stderr=True)

JSON = Annotated[bool, typer.Option("--json", help="Answer with JSON alone, on standard output.")]


@app.callback()
def main() -> None:
    """Dualstream learns linear models from a stream, durably and with a certificate."""


def say(line: str) -> None:
    """A line for who reads, as it is."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def print_json(told: Any) -> None:
    """One JSON document, for who reads with a program."""
    typer.echo(msgspec.json.encode(told).decode())


def fail(reason: str, code: int = 2) -> NoReturn:
    """End the command with a sentence."""
    say_error(reason)
    raise typer.Exit(code)


def say_error(reason: str) -> None:
    errors.print(reason, style="red", highlight=False, markup=False, soft_wrap=True)


# Exit codes, as docs/reference/cli.md tells them.
SOME_REFUSED, WRONG, REFUSED, UNREACHABLE, INTERRUPTED = 1, 2, 3, 4, 130
ERRORS_SHOWN = 5
URL = "http://127.0.0.1:8000"

Url = Annotated[str, typer.Option("--url", envvar="DUALSTREAM_URL", help="The server.")]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        envvar=API_KEY_NAME,
        show_envvar=True,
        help="A key, if the server asks for it.",
    ),
]
Patience = Annotated[
    float,
    typer.Option(
        "--patience", min=0.0, help="Seconds to try again for while the server does not answer."
    ),
]
PATIENCE_S = 60.0


def known_models(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of the server's models, for the shell to complete."""
    url, api_key = ctx.params.get("url") or URL, ctx.params.get("api_key")
    try:
        with Client(url, api_key=api_key, patience_s=0.0, timeout_s=1.0) as client:
            return [model.id for model in client.models() if model.id.startswith(incomplete)]
    except (ClientError, httpx.InvalidURL):
        return []


Model = Annotated[str, typer.Argument(help="The model's id.", autocompletion=known_models)]


@contextmanager
def connected(
    url: str, api_key: str | None, patience_s: float, as_json: bool = False
) -> Iterator[Client]:
    """A client of the server; what goes wrong with it ends the command."""
    with ending(as_json):
        with Client(url, api_key=api_key, patience_s=patience_s) as client:
            yield client


@contextmanager
def ending(as_json: bool = False) -> Iterator[None]:
    """Errors of a client as sentences and exit codes; with `as_json` the problem itself, too."""
    try:
        yield
    except (BadInput, httpx.InvalidURL) as wrong:
        fail(str(wrong), WRONG)
    except Refused as refused:
        if as_json:
            print_json(refused.problem)
        say_error(refused.detail)
        if refused.kind == "invalid-rows":
            show_errors(refused.errors)
        raise typer.Exit(REFUSED) from None
    except Unreachable as nobody:
        fail(str(nobody), UNREACHABLE)
    except KeyboardInterrupt:
        fail("interrupted", INTERRUPTED)


def show_errors(errors: Any, of: str = "") -> None:
    """The first refused rows."""
    for error in (errors or ())[:ERRORS_SHOWN]:
        place = f"line {error['line']}" if "line" in error else f"row {error['index']}"
        say_error(f"  {of}{place}: {error['reason']}")
