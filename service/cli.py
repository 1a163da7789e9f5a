"""The `dualstream` command."""

import asyncio
import logging
from typing import Annotated, Any

import msgspec
import typer
from pydantic import ValidationError
from rich.console import Console

from service import forks
from service.journal.protocol import JournalError
from service.journal.record import RecordError
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
    max_upload_bytes: Annotated[
        int | None, _flag("max-upload-bytes", _help("max_upload_bytes"))
    ] = None,
    max_listeners: Annotated[int | None, _flag("max-listeners", _help("max_listeners"))] = None,
    append_timeout_s: Annotated[
        float | None, _flag("append-timeout-s", _help("append_timeout_s"))
    ] = None,
    snapshot_every: Annotated[int | None, _flag("snapshot-every", _help("snapshot_every"))] = None,
    models_bytes: Annotated[int | None, _flag("models-bytes", _help("models_bytes"))] = None,
    models_held: Annotated[int | None, _flag("models-held", _help("models_held"))] = None,
    keep_records: Annotated[int | None, _flag("keep-records", _help("keep_records"))] = None,
    max_versions: Annotated[int | None, _flag("max-versions", _help("max_versions"))] = None,
    versions_held: Annotated[int | None, _flag("versions-held", _help("versions_held"))] = None,
    versions_bytes: Annotated[int | None, _flag("versions-bytes", _help("versions_bytes"))] = None,
    key_ttl_s: Annotated[int | None, _flag("key-ttl-s", _help("key_ttl_s"))] = None,
    max_keys: Annotated[int | None, _flag("max-keys", _help("max_keys"))] = None,
    redis_input: Annotated[bool | None, _flag("redis-input", _help("redis_input"))] = None,
    max_dead: Annotated[int | None, _flag("max-dead", _help("max_dead"))] = None,
    remember_s: Annotated[int | None, _flag("remember-s", _help("remember_s"))] = None,
    max_remembered: Annotated[int | None, _flag("max-remembered", _help("max_remembered"))] = None,
    remembered_bytes: Annotated[
        int | None, _flag("remembered-bytes", _help("remembered_bytes"))
    ] = None,
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


@app.command()
def migrate(
    of: Annotated[str, typer.Option("--from", help="The store to copy, which is only read.")],
    to: Annotated[str, typer.Option("--to", help="The store to copy into.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Say what was done as one JSON document.")
    ] = False,
) -> None:
    """Copy all models of one store into another, to the bit.

    Specs, journals, keys, snapshots, copies and versions. Stop the servers of both stores before.
    A model can be seen in the target once it is whole; a run that was cut off is gone on with by
    running the same again.

    Example: dualstream migrate --from sqlite:///dualstream.db --to redis://localhost:6379/0
    """
    from service.api.health import without_password
    from service.migration import Refused, run_migration

    try:
        moved = asyncio.run(run_migration(of, to, (lambda line: None) if as_json else _say))
    except (Refused, JournalError, ValueError) as refused:
        _fail(str(refused))
    if as_json:
        typer.echo(msgspec.json.encode({"models": moved}).decode())
    else:
        _say(f"all {len(moved)} models of {without_password(of)} are in {without_password(to)}")


@app.command("replay")
def replay_model(
    model: Annotated[str, typer.Argument(help="The model's id.")],
    until: Annotated[
        int | None, typer.Option(help="The seq whose state to compute; the journal's end if unset.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="PATH=VALUE: another spec, as in rho=0.01, window.beta=0.999."),
    ] = None,
    store: Annotated[str | None, _flag("store", _help("store"))] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Compute a state of the past, or what another spec would have made of the same journal.

    Reads alone: neither the model nor its server is touched.

    Example: dualstream replay clicks --until 5000 --set rho=0.01
    """
    from service.recovery import Forked
    from service.what_if import Refused, parse_changes, replay

    where = _settings({} if store is None else {"store": store}).store
    try:
        told = asyncio.run(replay(where, model, until, parse_changes(changes or [])))
    except (Refused, JournalError, RecordError, Forked, ValueError) as refused:
        _fail(str(refused))
    if as_json:
        typer.echo(msgspec.json.encode(told).decode())
        return
    kept = "a kept state" if told.from_seq == 0 else f"records {told.from_seq} to {told.seq}"
    _say(f"{told.model} at seq {told.seq}, from {kept}")
    if changes and told.from_seq > 1:
        _say(f"the journal is kept from seq {told.from_seq} on: what came before is not learned")
    if told.left_out_rollbacks:
        _say(f"{told.left_out_rollbacks} rollbacks are left out: they name states of another spec")
    _say(f"samples {told.samples}, rejected {told.rejected}, state {told.state_digest}")
    for view in ("since_start", "rolling", "fading"):
        _say(f"{view}: {msgspec.json.encode(told.metrics[view]).decode()}")


def _say(line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True)


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
