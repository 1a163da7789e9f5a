"""A process that appends and says what was acknowledged: one line per append on its output.

    python -m tests.journal.appender URL MODEL FIRST COUNT SIZE

Appends COUNT groups of SIZE rows with ids FIRST, FIRST + 1 ..., and prints "first-id seq" once
each group is acknowledged, so whoever kills it knows what must be in the journal. MODEL may be
several with commas between, which are appended to at the same time; the ids of the n-th of them
begin at FIRST + n * 1,000,000.
"""

import asyncio
import os
import sys

from service.journal import open_journal
from service.journal.protocol import Change, Journal, JournalUnavailable, OutcomeUnknown
from tests.journal.groups import Log, rows

APART = 1_000_000


async def main(url: str, models: str, first: int, count: int, size: int) -> None:
    journal = await open_journal(url)
    firsts = [(model, first + n * APART) for n, model in enumerate(models.split(","))]
    await asyncio.gather(*(append(journal, *given, count, size) for given in firsts))
    await journal.close()


async def append(journal: Journal, model: str, first: int, count: int, size: int) -> None:
    log = Log(journal, await journal.get(model))
    for start in range(first, first + count * size, size):
        group = [rows(tag, id=str(tag)) for tag in range(start, start + size)]
        nonce, known_seq = os.urandom(16), log.known_seq
        while True:
            try:
                told = Change("append", detail={"first": start})
                appended = await log.append(*group, nonce=nonce, known_seq=known_seq, change=told)
                break
            except (JournalUnavailable, OutcomeUnknown):
                await asyncio.sleep(0.01)
        for place, tag in zip(appended.placed, range(start, start + size), strict=True):
            sys.stdout.write(f"{tag} {place.seq}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3], *map(int, sys.argv[3:])))
