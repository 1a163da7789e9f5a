"""Commands that call a server: their options, the connection, its errors."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Annotated, Any

import httpx
import typer

from dualstream.client import BadInput, Client, ClientError, Refused, Unreachable
from dualstream.client.calls import API_KEY_NAME
from dualstream.service.cli import common
from dualstream.service.cli.commands import app
from dualstream.wire.schemas import MODEL_ID, MODEL_ID_RULE

ERRORS_SHOWN = 5
URL = "http://127.0.0.1:8000"
HINTS = {
    "unauthorized": (": send ", f"; give it with --api-key or {API_KEY_NAME}"),
    "unknown-model": (
        "; GET ",
        "; `dualstream models` lists the models, `dualstream create` creates one",
    ),
}
"""By kind of problem: where the server's advice to clients of HTTP begins, and that of commands."""


def with_scheme(url: str) -> str:
    """`localhost:8000` is http://localhost:8000."""
    return url if "://" in url or not url else f"http://{url}"


Url = Annotated[
    str,
    typer.Option("--url", envvar="DUALSTREAM_URL", callback=with_scheme, help="URL of the server."),
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


def checked_id(model: str | None) -> str | None:
    """The id, which a slash would make another path. Raises typer.BadParameter."""
    if model is not None and not MODEL_ID.fullmatch(model):
        raise typer.BadParameter(f"{MODEL_ID_RULE}, got {model!r}")
    return model


Model = Annotated[
    str, typer.Argument(help="Id of the model.", autocompletion=complete_model, callback=checked_id)
]


@contextmanager
def connected(
    url: str, api_key: str | None, patience_s: float, as_json: bool = False
) -> Iterator[Client]:
    """A client of the server. Its errors end the command."""
    with ending(as_json, f"{url}: "):
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
            common.note(f"{url}: {reason}; trying again for {left_s:.0f} s", "yellow")

    return say_once


@contextmanager
def ending(as_json: bool = False, server: str = "") -> Iterator[None]:
    """Turn client errors into messages and exit codes.

    as_json  also prints the problem
    server   begins the message that no server answered
    """
    try:
        yield
    except (BadInput, httpx.InvalidURL) as wrong:
        common.fail(str(wrong), common.WRONG)
    except Refused as refused:
        if as_json:
            common.print_json(refused.problem)
        of_http, of_command = HINTS.get(refused.kind, ("", ""))
        detail = refused.detail.partition(of_http)[0] if of_http else refused.detail
        common.say_error(f"{detail}{of_command}")
        if refused.kind == "invalid-rows":
            show_errors(refused.errors)
        raise typer.Exit(common.REFUSED) from None
    except Unreachable as unreachable:
        is_none = isinstance(unreachable.__cause__, httpx.ConnectError)
        hint = "; start a server with `dualstream serve`, or name one with --url" if is_none else ""
        common.fail(f"{server}{unreachable}{hint}", common.UNREACHABLE)
    except KeyboardInterrupt:
        common.fail("interrupted", common.INTERRUPTED)


@contextmanager
def naming(file: object) -> Iterator[None]:
    """Turn an OSError of a file into BadInput that names it."""
    try:
        yield
    except OSError as wrong:
        raise BadInput(f"{file}: {wrong.strerror or wrong}") from None


def show_errors(errors: Any, of: str = "") -> None:
    """Print the first refused rows."""
    for error in (errors or ())[:ERRORS_SHOWN]:
        location = f"line {error['line']}" if "line" in error else f"row {error['index']}"
        where = f"{error['pointer']}: " if error.get("pointer") else ""
        common.say_error(f"  {of}{location}: {where}{error['reason']}")
