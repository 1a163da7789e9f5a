"""The process of a restore, which a test kills."""

import asyncio
from multiprocessing.connection import Connection
from pathlib import Path

from dualstream.service.archive.restore import run_restore


def run(archive: Path, to: str, began: Connection) -> None:
    """Restore; prints a line before."""
    began.send(None)
    with archive.open("rb") as file:
        asyncio.run(run_restore(to, True, file, lambda line: None))
