"""What all commands share: the application, how they speak, how they end."""

from typing import Annotated, Any, NoReturn

import msgspec
import typer
from rich.console import Console

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
