"""The `dualstream` command."""

import logging
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console

from service import forks
from service.settings import Settings, UnsafeBinding

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
console = Console()


@app.callback()
def main() -> None:
    """Dualstream learns linear models from a stream, durably and with a certificate."""


def _flag(name: str, help_text: str) -> Any:
    return typer.Option(f"--{name}", help=f"{help_text} [env DUALSTREAM_{name_of(name)}]")


def name_of(flag: str) -> str:
    """The environment's name of a flag, less the prefix."""
    return flag.replace("-", "_").upper()


def _help(field: str) -> str:
    return Settings.model_fields[field].description or ""


@app.command()
def serve(
    host: Annotated[str | None, _flag("host", _help("host"))] = None,
    port: Annotated[int | None, _flag("port", _help("port"))] = None,
    workers: Annotated[int | None, _flag("workers", _help("workers"))] = None,
    store: Annotated[str | None, _flag("store", _help("store"))] = None,
    adopt: Annotated[bool | None, _flag("adopt", _help("adopt"))] = None,
    durability: Annotated[str | None, _flag("durability", _help("durability"))] = None,
    allow_anonymous: Annotated[
        bool | None, _flag("allow-anonymous", _help("allow_anonymous"))
    ] = None,
    max_body_bytes: Annotated[int | None, _flag("max-body-bytes", _help("max_body_bytes"))] = None,
    append_timeout_s: Annotated[
        float | None, _flag("append-timeout-s", _help("append_timeout_s"))
    ] = None,
    snapshot_every: Annotated[int | None, _flag("snapshot-every", _help("snapshot_every"))] = None,
    models_bytes: Annotated[int | None, _flag("models-bytes", _help("models_bytes"))] = None,
    models_held: Annotated[int | None, _flag("models-held", _help("models_held"))] = None,
    key_ttl_s: Annotated[int | None, _flag("key-ttl-s", _help("key_ttl_s"))] = None,
    max_keys: Annotated[int | None, _flag("max-keys", _help("max_keys"))] = None,
    kept_answers: Annotated[int | None, _flag("kept-answers", _help("kept_answers"))] = None,
) -> None:
    """Run the server. Flags win over the environment."""
    given = {name: value for name, value in locals().items() if value is not None}
    settings = _settings(given)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    if settings.workers > 1:
        forks.begin()
    from service.server import serve as run_alone
    from service.workers import serve_by_workers

    run = run_alone if settings.workers == 1 else serve_by_workers
    try:
        run(settings, lambda line: console.print(line, highlight=False, soft_wrap=True))
    except (UnsafeBinding, ValueError, OSError) as refused:
        _fail(str(refused))


@app.command()
def demo() -> None:
    """Stream the Adult data through a server of its own and compare with two baselines."""
    from service.demo.run import run_demo

    raise typer.Exit(run_demo(console))


def _settings(given: dict[str, Any]) -> Settings:
    try:
        return Settings(**given)
    except ValidationError as wrong:
        for error in wrong.errors():
            console.print(f"{'.'.join(map(str, error['loc']))}: {error['msg']}", style="red")
        raise typer.Exit(2) from None


def _fail(reason: str) -> None:
    console.print(reason, style="red", highlight=False, soft_wrap=True)
    raise typer.Exit(2)
