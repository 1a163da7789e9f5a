"""Where the time of a row goes, by the service's own functions, called one after the other.

Rows of one chunk at a time, as the server takes them; what is not in these lines (HTTP, the event
loop, answers) is the rest of the server's CPU.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from load_tests.http import SERVER_CORE, as_json
from load_tests.ingest.arrow import BATCH_ROWS as ARROW_ROWS, record_batches, stream
from load_tests.ingest.bulk import SPECS, TYPES, ndjson_line
from load_tests.ingest.requests import BATCH_ROWS, json_batches, stores
from load_tests.measure import FEW_ROUNDS, on_core
from service.catalog import canonical
from service.codecs import Door, as_batch, parse_body
from service.demo.adult import adult_lines
from service.journal import open_journal
from service.journal.protocol import Part
from service.requests import Request
from solvers import Progressive, make_learner, resolve_spec

STAGES = (
    "reading the body",
    "encoding the record",
    "appending, SQLite",
    "appending, Redis, without its own",
    "learning",
    "progressive metrics",
)
CHUNK_ROWS = 10_000
"""About as many rows of Adult as a chunk of a long body holds."""


def stage_table() -> list[str]:
    """Microseconds of CPU a row of each stage, the least of some rounds."""
    with stores() as urls, on_core(SERVER_CORE):
        sqlite, redis = urls["SQLite normal"], urls["Redis everysec"]
        columns = {
            name: asyncio.run(_stages(kind, type_, body, n, (sqlite, redis)))
            for name, kind, type_, body, n in _bodies()
        }
    lines = [
        f"| {stage} | " + " | ".join(f"{times[number]:.2f}" for times in columns.values()) + " |"
        for number, stage in enumerate(STAGES)
    ]
    return ["| what | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns), *lines]


def _bodies() -> list[tuple[str, str, str, bytes, int]]:
    lines = adult_lines()[:CHUNK_ROWS]
    named = b"\n".join(map(ndjson_line, lines)) + b"\n"
    batch = next(json_batches(lines)).encode()
    return [
        ("LIBSVM", "libsvm", TYPES["libsvm"], b"\n".join(lines) + b"\n", len(lines)),
        ("NDJSON, hashed", "ndjson", TYPES["ndjson"], named, len(lines)),
        ("Arrow", "arrow", TYPES["arrow"], stream(record_batches(ARROW_ROWS)), ARROW_ROWS),
        (f"JSON, {BATCH_ROWS:,} samples", "libsvm", "application/json", batch, BATCH_ROWS),
        ("JSON, one sample", "libsvm", "application/json", as_json(lines[0]).encode(), 1),
    ]


async def _stages(
    kind: str, content_type: str, body: bytes, n: int, urls: Sequence[str]
) -> list[float]:
    spec = resolve_spec(SPECS[kind])
    door, learner, progress = Door(spec), make_learner(spec), Progressive.of(spec)
    repeats = max(1, CHUNK_ROWS // n)
    rounds = []
    for _ in range(FEW_ROUNDS + 1):  # the first one meets names that are new
        spent, intake = _timed(repeats, lambda: parse_body(door, content_type, body, labelled=True))
        rows, names = intake.rows, intake.names_beside
        times = [spent]
        spent, request = _timed(repeats, partial(Request.of, rows, None, None, names))
        times += [spent, *[await _append(url, spec, request.parts, repeats) for url in urls]]
        batch = as_batch([rows])
        spent, outcome = _timed(repeats, partial(learner.learn, batch))
        times += [spent, _timed(repeats, partial(progress.count, batch, outcome))[0]]
        door.told(intake.names, 1)
        rounds.append([1e6 * seconds / n for seconds in times])
    return [min(times) for times in zip(*rounds[1:], strict=True)]


async def _append(url: str, spec: dict[str, Any], parts: list[Part], repeats: int) -> float:
    """CPU seconds of this process, all its threads, for one of so many appends to a new model."""
    journal = await open_journal(url)
    try:
        record, _ = await journal.create("stages", canonical(spec), canonical(spec))
        count, began = sum(part.count for part in parts), time.process_time()
        for done in range(repeats):
            known = done * count
            await journal.append("stages", record.incarnation, os.urandom(16), known, parts)
        spent = (time.process_time() - began) / repeats
        await journal.delete("stages")
        return spent
    finally:
        await journal.close()


def _timed(repeats: int, call: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of one of so many calls, and what the last one returned."""
    began = time.process_time()
    for _ in range(repeats):
        result = call()
    return (time.process_time() - began) / repeats, result
