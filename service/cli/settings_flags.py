"""Settings as command-line flags."""

from typing import Any

import typer
from pydantic import ValidationError

from dualstream.service.cli.common import say_error
from dualstream.service.settings import PREFIX, Settings


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


def read_settings(values: dict[str, Any]) -> Settings:
    """Read the settings from flags and environment. Invalid settings end the command."""
    try:
        return Settings(**values)
    except ValidationError as wrong:
        for error in wrong.errors():
            variable = "".join(f"{PREFIX}{name}: ".upper() for name in error["loc"])
            say_error(variable + error["msg"].removeprefix("Value error, "))
        raise typer.Exit(2) from None
