"""Settings of the server as flags of its commands."""

from typing import Any

import typer
from pydantic import ValidationError

from service.cli.common import say_error
from service.settings import Settings


def flag(name: str, help_text: str) -> Any:
    """A flag that is a setting, too."""
    return typer.Option(f"--{name}", help=f"{help_text} [env DUALSTREAM_{name_of(name)}]")


def name_of(flag: str) -> str:
    """The environment's name of a flag, less the prefix."""
    return flag.replace("-", "_").upper()


def help_of(field: str) -> str:
    """What a setting is."""
    return Settings.model_fields[field].description or ""


def read_settings(given: dict[str, Any]) -> Settings:
    """The settings, of which `given` are flags. Ends the command where one is not valid."""
    try:
        return Settings(**given)
    except ValidationError as wrong:
        for error in wrong.errors():
            say_error(f"{'.'.join(map(str, error['loc']))}: {error['msg']}")
        raise typer.Exit(2) from None
