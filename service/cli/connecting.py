"""How commands reach a server, and how they end where it says no, or does not answer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import httpx
import typer

from service.cli.common import fail, print_json, say_error
from service.client import BadInput, Client, ClientError, Refused, Unreachable
from service.client.calls import API_KEY_NAME

# Exit codes, as docs/CLI.md tells them.
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
