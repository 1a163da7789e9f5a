"""Commands on a store, without a server: dump, restore, replay."""

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import typer

from dualstream.service.cli.commands import app
from dualstream.service.cli.common import JSON, fail, note, print_json, say
from dualstream.service.cli.settings_flags import flag, read_settings
from dualstream.service.journal.protocol import JournalError
from dualstream.wire.plural import plural

STORE = flag("store")
MAX_SEGMENTS = 5
"""Segments of a column that `replay` prints: the most harmful ones."""


@app.command()
def dump(
    model: Annotated[str | None, typer.Argument(help="Id of the model.")] = None,
    is_store: Annotated[
        bool, typer.Option("--all", help="Dump all models of the store and its audit log.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; default: standard output.")
    ] = None,
    store: Annotated[str | None, STORE] = None,
) -> None:
    """Write a model, or a whole store, to one file: an archive.

    The archive has the spec, journal, snapshots, versions, pending rows and idempotency keys.
    Servers may keep running: everything acknowledged before the dump began is in the archive.

    Example:

        dualstream dump clicks --output clicks.archive
    """
    from dualstream.service.archive.dump import Refused, run_dump
    from dualstream.service.journal.record import RecordError

    if (model is None) != is_store:
        fail("give a model id, or --all for all models of the store")
    where = _store(store)
    try:
        if output is None:
            if sys.stdout.isatty():
                fail("standard output is a terminal; redirect it, or give a file with --output")
            _run(run_dump(where, model, sys.stdout.buffer, _note))
        elif output.exists() and not output.is_file():  # a pipe or a device
            with output.open("wb") as file:
                _run(run_dump(where, model, file, _note))
        else:
            output = output.resolve()  # a link is kept
            part = output.with_name(f"{output.name}.part")
            try:
                with part.open("wb") as file:
                    _run(run_dump(where, model, file, _note))
                    os.fsync(file.fileno())
                part.replace(output)
            finally:
                part.unlink(missing_ok=True)
    except OSError as wrong:
        where = wrong.filename or "standard output"
        fail(f"the archive cannot be written: {where}: {wrong.strerror or wrong}")
    except (Refused, JournalError, RecordError, ValueError) as refused:
        fail(str(refused))


@app.command()
def restore(
    archive: Annotated[
        Path | None, typer.Argument(help="File to read; default: standard input.")
    ] = None,
    is_store: Annotated[
        bool, typer.Option("--all", help="Restore a whole store. Existing models are kept.")
    ] = False,
    store: Annotated[str | None, STORE] = None,
) -> None:
    """Restore an archive of `dualstream dump` into a store.

    A model becomes visible after all of it is read and checked. If the archive is damaged or
    truncated, the command does not change that model and exits with 1.

    Example:

        dualstream dump --all --store sqlite:///dualstream.db | dualstream restore --all --store redis://localhost:6379/0
    """
    from dualstream.service.archive.dump import Refused
    from dualstream.service.archive.format import DamagedArchive
    from dualstream.service.archive.restore import run_restore

    where = _store(store)

    def run(file: BinaryIO) -> None:
        _run(run_restore(where, is_store, file, say))

    try:
        if archive is not None:
            with archive.open("rb") as file:
                run(file)
        elif sys.stdin.isatty():
            fail("standard input is a terminal; give the archive file, or redirect it")
        else:
            run(sys.stdin.buffer)
    except DamagedArchive as damaged:
        fail(f"{archive or 'standard input'}: {damaged}", 1)
    except OSError as wrong:
        where = wrong.filename or "standard input"
        fail(f"{where}: {wrong.strerror or wrong}")
    except (Refused, JournalError, ValueError) as refused:
        fail(str(refused))


@app.command("replay")
def replay_model(
    model: Annotated[str, typer.Argument(help="Id of the model.")],
    until: Annotated[
        int | None,
        typer.Option(min=0, help="Compute the state at this seq; default: end of the journal."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="PATH=VALUE: change the spec, e.g. rho=0.01 or window.beta=0.999."
        ),
    ] = None,
    store: Annotated[str | None, STORE] = None,
    as_json: JSON = False,
) -> None:
    """Compute an earlier state, or the state under another spec, from the journal.

    Read-only: does not change the model or its server.

    Example:

        dualstream replay clicks --until 5000 --set rho=0.01
    """
    from dualstream.service.features import ALL
    from dualstream.service.journal.record import RecordError
    from dualstream.service.replay.replay import Refused, parse_changes, replay
    from dualstream.service.replica.fork_detection import Forked

    where = _store(store)
    try:
        result = asyncio.run(replay(ALL, where, model, until, parse_changes(changes or [])))
    except (Refused, JournalError, RecordError, Forked, ValueError) as refused:
        fail(str(refused))
    if as_json:
        print_json(result)
        return
    if result.seq == 0 or result.from_seq > result.seq:
        came = "without records"
    elif result.from_seq == 0:
        came = "from a stored state"
    else:
        came = f"from records {result.from_seq} to {result.seq}"
    say(f"{result.model} at seq {result.seq}, {came}")
    if changes and result.from_seq > 1:
        say(f"the journal starts at seq {result.from_seq}; earlier rows are not learned")
    if result.left_out_rollbacks:
        skipped = plural(result.left_out_rollbacks, "rollback")
        say(f"{skipped} skipped, to states of another spec")
    if result.left_out_refits:
        skipped = plural(result.left_out_refits, "refit")
        say(f"{skipped} skipped, of the problem of another spec")
    if result.left_out_pauses:
        skipped = plural(result.left_out_pauses, "control")
        say(f"{skipped} of pauses skipped; all rows are learned")
    say(f"samples {result.samples}, rejected {result.rejected}, state {result.state_digest}")
    for name, figures in result.metrics.items():
        if name not in ("rows", "drift"):
            say(f"{name}: {msgspec.json.encode(figures).decode()}")
    for column, metrics in result.segments.items():
        for one in metrics["since_start"][1 : 1 + MAX_SEGMENTS]:
            say(f"segment {column}={one.value}: {msgspec.json.encode(one).decode()}")


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run until done, or until Ctrl-C, also while the work waits for a pipe.

    asyncio's own handler only cancels the task, which notices it after the pipe's next bytes.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        asyncio.run(work)
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        asyncio.run(work)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _store(url: str | None) -> str:
    return read_settings({} if url is None else {"store": url}).store


def _note(line: str) -> None:
    """Print to standard error, because standard output may be the archive."""
    note(line)
