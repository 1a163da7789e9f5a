"""What all commands share: the application, how they speak, how they end."""

from typing import Annotated, Any, NoReturn

import msgspec
import typer
from pydantic import ValidationError
from rich.console import Console

from service.settings import PREFIX, Settings

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


def flag(name: str) -> Any:
    """Command-line option and environment variable of a setting."""
    field = Settings.model_fields[name]
    extra = field.json_schema_extra
    assert isinstance(extra, dict)
    return typer.Option(
        f"--{name.replace('_', '-')}",
        envvar=f"{PREFIX}{name.upper()}",
        help=field.description,
        min=next((bound.ge for bound in field.metadata if hasattr(bound, "ge")), None),
        max=next((bound.le for bound in field.metadata if hasattr(bound, "le")), None),
        show_default="unset" if field.default is None else True,
        rich_help_panel=str(extra["group"]),
    )


def say(line: str) -> None:
    """A line for who reads, as it is."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def print_json(told: Any) -> None:
    """One JSON document, for who reads with a program."""
    typer.echo(msgspec.json.encode(told).decode())


def read_settings(given: dict[str, Any]) -> Settings:
    """The settings, of which `given` are flags. Ends the command where one is not valid."""
    try:
        return Settings(**given)
    except ValidationError as wrong:
        for error in wrong.errors():
            say_error(f"{'.'.join(map(str, error['loc']))}: {error['msg']}")
        raise typer.Exit(2) from None


def fail(reason: str, code: int = 2) -> NoReturn:
    """End the command with a sentence."""
    say_error(reason)
    raise typer.Exit(code)


def say_error(reason: str) -> None:
    errors.print(reason, style="red", highlight=False, markup=False, soft_wrap=True)
