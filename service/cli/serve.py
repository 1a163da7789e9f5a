"""Commands that run a server: serve, config, demo."""

import inspect
import math
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from dualstream.service.cli import common
from dualstream.service.cli.commands import app
from dualstream.service.cli.settings_flags import flag, read_settings
from dualstream.service.observability import logs
from dualstream.service.server.start_checks import check_settings, listen
from dualstream.service.server.stop_signals import ignore_user_signals
from dualstream.service.settings import PREFIX, Settings, UnknownSettings, check_variables, shown

_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def _flags() -> list[inspect.Parameter]:
    """A flag per setting."""
    flags = [
        (name, field.annotation, field.default, flag(name))
        for name, field in Settings.model_fields.items()
    ]
    return [
        inspect.Parameter("context", _KEYWORD, annotation=typer.Context),
        *(
            inspect.Parameter(
                name, _KEYWORD, default=default, annotation=Annotated[annotation, option]
            )
            for name, annotation, default, option in flags
        ),
    ]


def _settings_of(context: typer.Context, flags: dict[str, Any]) -> Settings:
    """The settings by flags and environment. Ends the command if they are wrong."""
    try:
        check_variables()
    except UnknownSettings as unknown:
        common.fail(str(unknown))
    # Typer takes an empty variable for an absent one. `Settings` does not: no API keys is
    # another setting than an empty list of them.
    sources = {name: context.get_parameter_source(name) for name in flags}
    return read_settings(
        {
            name: value
            for name, value in flags.items()
            if (source := sources[name]) is not None and source.name != "DEFAULT"
        }
    )


def serve(context: typer.Context, **flags: Any) -> None:
    """Run the server. Flags override environment variables.

    Example:

        dualstream serve --store redis://localhost:6379/0 --workers 2
    """
    settings = _settings_of(context, flags)
    logs.configure(settings.log_level, settings.log_format)
    ignore_user_signals()
    try:
        # Before kernels are compiled, which may take minutes. The server binds the port itself.
        check_settings(settings)
        listen(settings).close()
    except ValueError as wrong:
        common.fail(str(wrong))
    from dualstream.service.server import compile_kernels as kernels

    with kernels.compiled_by_processes(common.errors):
        from dualstream.service.server.serve import serve as run_alone
        from dualstream.service.server.workers import WorkersKeepEnding, serve_by_workers

    run = run_alone if settings.workers == 1 else serve_by_workers
    try:
        run(settings, common.announce)
    except WorkersKeepEnding as ended:
        common.fail(str(ended), common.ENDED)
    except (ValueError, OSError) as refused:
        common.fail(str(refused))


def config(
    context: typer.Context, check: bool = False, as_json: bool = False, **flags: Any
) -> None:
    """Print the settings that `serve` would use with these flags, and where each comes from.

    Passwords and keys are hidden. `--check` ends with 2 if `serve` would not start.

    Example:

        dualstream config --workers 2
    """
    settings = _settings_of(context, flags)
    if check:
        logs.configure(settings.log_level, settings.log_format)
        from dualstream.service.server import compile_kernels as kernels

        try:
            check_settings(settings)
            with kernels.compiled_by_processes(common.errors):
                from dualstream.service.server.app import create_app
            create_app(settings)
        except ValueError as wrong:
            common.fail(str(wrong))
    rows = [
        {
            "setting": f"{PREFIX}{name.upper()}",
            "value": shown(name, value),
            "source": _source_of(context, settings, name),
        }
        for name, value in settings
    ]
    table = common.Table(box=None, pad_edge=False)
    for column in ("setting", "value", "source"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row.values(), style=None if row["source"] != "default" else "dim")
    common.report(as_json, rows, table)


def _source_of(context: typer.Context, settings: Settings, name: str) -> str:
    """`default`, the flag, the variable, or the variable that names a file."""
    if name == "store" and settings.store_file is not None:
        return f"{PREFIX}STORE_FILE"
    source = context.get_parameter_source(name)
    if source is not None and source.name == "COMMANDLINE":
        return f"--{name.replace('_', '-')}"
    variable = f"{PREFIX}{name.upper()}"
    return variable if variable in os.environ else "default"  # noqa: TID251


_check = inspect.Parameter(
    "check",
    _KEYWORD,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option(
            "--check",
            help="Also read keys and certificate and look at the store's file; opens no store.",
        ),
    ],
)
_as_json = inspect.Parameter("as_json", _KEYWORD, default=False, annotation=common.JSON)
serve.__signature__ = inspect.Signature(_flags())  # type: ignore[attr-defined]
config.__signature__ = inspect.Signature([*_flags(), _check, _as_json])  # type: ignore[attr-defined]
app.command()(serve)
app.command()(config)


@app.command()
def demo(
    stay: Annotated[
        bool,
        typer.Option(
            "--stay",
            help="Slow down and keep the server running until Ctrl-C, to watch the dashboard.",
        ),
    ] = False,
    write: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the data set as CSV, and end; label: income."),
    ] = None,
    as_json: common.JSON = False,
) -> None:
    """Stream the Adult data set through a temporary server and compare with two baselines.

    Example:

        dualstream demo --stay
    """
    if write is not None:
        from dualstream.service.cli.connection import ending, naming
        from dualstream.service.cli.demo.adult import write_csv

        with ending(), naming(write):
            write_csv(write)
        return
    from dualstream.service.cli.demo.run import WATCHED_ROWS_PER_S, run_demo

    said, tell = (common.errors, common.print_json) if as_json else (common.console, None)
    raise typer.Exit(run_demo(said, tell, stay, WATCHED_ROWS_PER_S if stay else math.inf))
