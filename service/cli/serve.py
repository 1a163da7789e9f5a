"""Commands that run a server: serve, demo."""

import inspect
import logging
import math
from typing import Annotated, Any

import typer

from dualstream.service.cli.common import (
    ENDED,
    JSON,
    app,
    console,
    errors,
    fail,
    print_json,
)
from dualstream.service.cli.settings_flags import flag, read_settings
from dualstream.service.settings import (
    PREFIX,
    REMOVED,
    Settings,
    UnknownSettings,
    UnsafeBinding,
    check_variables,
    removed_warning,
)


def _flags() -> list[inspect.Parameter]:
    """A flag per setting, and hidden flags for removed settings, which only warn."""
    flags = [
        (name, field.annotation, field.default, flag(name))
        for name, field in Settings.model_fields.items()
    ]
    for name in REMOVED:
        variable = f"{PREFIX}{name.upper()}"
        option = typer.Option(f"--{name.replace('_', '-')}", envvar=variable, hidden=True)
        flags.append((name, str | None, None, option))
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter("context", kind, annotation=typer.Context),
        *(
            inspect.Parameter(name, kind, default=default, annotation=Annotated[annotation, option])
            for name, annotation, default, option in flags
        ),
    ]


def serve(context: typer.Context, **given: Any) -> None:
    """Run the server. Flags override environment variables.

    Example:

        dualstream serve --store redis://localhost:6379/0 --workers 2
    """

    def is_given(name: str) -> bool:
        source = context.get_parameter_source(name)
        return source is not None and source.name != "DEFAULT"

    for warning in [removed_warning(name) for name in REMOVED if given.pop(name) is not None]:
        errors.print(f"warning: {warning}", style="yellow", highlight=False, soft_wrap=True)
    try:
        check_variables()
    except UnknownSettings as unknown:
        fail(str(unknown))
    # Typer takes an empty variable for an absent one. `Settings` does not: no API keys is
    # another setting than an empty list of them.
    settings = read_settings({name: value for name, value in given.items() if is_given(name)})
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    from dualstream.service.server import compile_kernels as kernels

    with kernels.notice_of_compilation(
        lambda line: errors.print(line, style="dim", highlight=False)
    ):
        from dualstream.service.server.serve import serve as run_alone
        from dualstream.service.server.workers import WorkersKeepEnding, serve_by_workers

    run = run_alone if settings.workers == 1 else serve_by_workers
    try:
        run(settings, lambda line: console.print(line, highlight=False, soft_wrap=True))
    except WorkersKeepEnding as ended:
        fail(str(ended), ENDED)
    except (UnsafeBinding, ValueError, OSError) as refused:
        fail(str(refused))


serve.__signature__ = inspect.Signature(_flags())  # type: ignore[attr-defined]
app.command()(serve)


@app.command()
def demo(
    stay: Annotated[
        bool,
        typer.Option(
            "--stay",
            help="Slow down and keep the server running until Ctrl-C, to watch the dashboard.",
        ),
    ] = False,
    as_json: JSON = False,
) -> None:
    """Stream the Adult data set through a temporary server and compare with two baselines.

    Example:

        dualstream demo --stay
    """
    from dualstream.service.cli.demo.run import WATCHED_ROWS_PER_S, run_demo

    said, tell = (errors, print_json) if as_json else (console, None)
    raise typer.Exit(run_demo(said, tell, stay, WATCHED_ROWS_PER_S if stay else math.inf))
