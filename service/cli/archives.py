"""Commands that copy models between a store and a file: dump, restore."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from dualstream.service.cli.common import app, errors, fail, say
from dualstream.service.cli.settings_flags import flag, read_settings
from dualstream.service.journal.protocol import JournalError

STORE = flag("store")


@app.command()
def dump(
    model: Annotated[str | None, typer.Argument(help="The model's id.")] = None,
    is_store: Annotated[
        bool, typer.Option("--all", help="All models of the store, and its audit log.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write; standard output if unset."),
    ] = None,
    store: Annotated[str | None, STORE] = None,
) -> None:
    """Write a model, or a whole store, to one file: an archive.

    The archive has the spec, journal, snapshots, versions, pending rows and idempotency keys.
    Servers can go on meanwhile: what they acknowledged before the dump began is in the archive.

    Example:

        dualstream dump clicks --output clicks.archive
    """
    from dualstream.service.archive.dump import Refused, run_dump
    from dualstream.service.journal.record import RecordError

    if (model is None) != is_store:
        fail("name a model, or give --all for all models of the store")
    where = _store(store)
    try:
        if output is None:
            if sys.stdout.isatty():
                fail("standard output is a terminal: redirect it, or name a file with --output")
            asyncio.run(run_dump(where, model, sys.stdout.buffer, _note))
        else:
            part = output.with_name(f"{output.name}.part")
            try:
                with part.open("wb") as file:
                    asyncio.run(run_dump(where, model, file, _note))
                    os.fsync(file.fileno())
                part.replace(output)
            finally:
                part.unlink(missing_ok=True)
    except (Refused, JournalError, RecordError, ValueError, OSError) as refused:
        fail(str(refused))


@app.command()
def restore(
    archive: Annotated[
        Path | None, typer.Argument(help="The file to read; standard input if unset.")
    ] = None,
    is_store: Annotated[
        bool, typer.Option("--all", help="Of a whole store; models that are there stay.")
    ] = False,
    store: Annotated[str | None, STORE] = None,
) -> None:
    """Read an archive that `dualstream dump` wrote into a store.

    A model becomes visible once all of it was read and checked. If the archive is damaged or
    truncated, the command changes nothing of that model and exits with 1.

    Example:

        dualstream dump --all --store sqlite:///dualstream.db | dualstream restore --all --store redis://localhost:6379/0
    """
    from dualstream.service.archive.dump import Refused
    from dualstream.service.archive.format import DamagedArchive
    from dualstream.service.archive.restore import run_restore

    where = _store(store)

    def run(file: BinaryIO) -> None:
        asyncio.run(run_restore(where, is_store, file, say))

    try:
        if archive is not None:
            with archive.open("rb") as file:
                run(file)
        elif sys.stdin.isatty():
            fail("standard input is a terminal: name the archive, or redirect it")
        else:
            run(sys.stdin.buffer)
    except DamagedArchive as damaged:
        fail(f"{archive or 'standard input'}: {damaged}", 1)
    except (Refused, JournalError, ValueError, OSError) as refused:
        fail(str(refused))


@app.command(
    hidden=True,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def migrate() -> None:
    """Replaced by `dump` and `restore`."""
    fail(
        "migrate is gone: use dualstream dump --all --store OLD |"
        " dualstream restore --all --store NEW"
    )


def _store(given: str | None) -> str:
    return read_settings({} if given is None else {"store": given}).store


def _note(line: str) -> None:
    """A line on standard error: standard output can be the archive."""
    errors.print(line, highlight=False, markup=False, soft_wrap=True)
