"""A process that appends and prints each acknowledged append, one per line.

It appends `count` groups of `size` rows with ids `first`, `first` + 1 .... It prints "first-id seq"
once each group is acknowledged, so a test that kills it knows what must be in the journal. With
several models, appended to at once, the ids of the n-th begin at `first` + n * 1,000,000.
"""

import asyncio
import os
from collections.abc import Sequence
from multiprocessing.connection import Connection

from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import Change, Journal, JournalUnavailable, OutcomeUnknown
from tests.forked import forks
from tests.service.journal.groups import Log, rows

APART = 1_000_000


class Appender:
    """The process, forked from one with all imports done."""

    def __init__(self, url: str, models: Sequence[str], first: int, count: int, size: int) -> None:
        reads, writes = os.pipe()
        with Connection(writes, readable=False) as says:
            inputs = (url, models, first, count, size, says)
            self._process = forks.Process(target=_run, args=inputs, daemon=True)
            self._process.start()
        self._said = open(reads, "rb")

    async def line(self) -> bytes:
        """The next line of its output."""
        return await asyncio.to_thread(self._said.readline)

    async def rest(self) -> bytes:
        """The rest of its output, once it has ended."""
        with self._said:
            said = await asyncio.to_thread(self._said.read)
        await asyncio.to_thread(self._process.join)
        return said

    def kill(self) -> None:
        self._process.kill()

    @property
    def exitcode(self) -> int | None:
        return self._process.exitcode


def _run(
    url: str, models: Sequence[str], first: int, count: int, size: int, says: Connection
) -> None:
    asyncio.run(_append_to_all(url, models, first, count, size, says))


async def _append_to_all(
    url: str, models: Sequence[str], first: int, count: int, size: int, says: Connection
) -> None:
    journal = await open_journal(url)
    firsts = [(model, first + n * APART) for n, model in enumerate(models)]
    await asyncio.gather(*(_append(journal, *case, count, size, says) for case in firsts))
    await journal.close()


async def _append(
    journal: Journal, model: str, first: int, count: int, size: int, says: Connection
) -> None:
    log = Log(journal, await journal.get(model))
    for start in range(first, first + count * size, size):
        group = [rows(tag, id=str(tag)) for tag in range(start, start + size)]
        nonce, known_seq = os.urandom(16), log.known_seq
        while True:
            try:
                got = Change("append", detail={"first": start})
                appended = await log.append(*group, nonce=nonce, known_seq=known_seq, change=got)
                break
            except (JournalUnavailable, OutcomeUnknown):
                await asyncio.sleep(0.01)
        got = zip(appended.positions, range(start, start + size), strict=True)
        os.write(says.fileno(), b"".join(b"%d %d\n" % (tag, position.seq) for position, tag in got))
