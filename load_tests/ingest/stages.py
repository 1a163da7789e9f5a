"""Where the time of a row goes before and after the append, by the service's own functions.

One thread, rows of one body at a time as the server takes them; what is not in these lines
(HTTP, the event loop, threads, the append itself) is the rest of the server's CPU.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from load_tests.http import GENERATOR_CORE, as_json
from load_tests.ingest.arrow import BODY_ROWS, arrow_bodies
from load_tests.ingest.bulk import SPECS, TYPES, ndjson_line
from load_tests.ingest.requests import BATCH_ROWS, json_batches
from load_tests.measure import FEW_ROUNDS, on_core
from service.codecs import Door, as_batch, parse_body
from service.demo.adult import adult_lines
from service.requests import Request
from solvers import Progressive, make_learner, resolve_spec

STAGES = ("reading the body", "encoding the record", "learning", "progressive metrics")
CHUNK_ROWS = 10_000
"""About as many rows of Adult as a chunk of a long body holds."""


def stage_table() -> list[str]:
    """Microseconds of CPU a row of each stage, the least of some rounds."""
    with on_core(GENERATOR_CORE):
        columns = {name: _stages(kind, type_, body, n) for name, kind, type_, body, n in _bodies()}
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
        ("Arrow", "arrow", TYPES["arrow"], arrow_bodies(1)[0], BODY_ROWS),
        (f"JSON, {BATCH_ROWS:,} samples", "libsvm", "application/json", batch, BATCH_ROWS),
        ("JSON, one sample", "libsvm", "application/json", as_json(lines[0]).encode(), 1),
    ]


def _stages(kind: str, content_type: str, body: bytes, n: int) -> list[float]:
    spec = resolve_spec(SPECS[kind])
    door, learner, progress = Door(spec), make_learner(spec), Progressive.of(spec)
    repeats = max(1, CHUNK_ROWS // n)
    rounds = []
    for _ in range(FEW_ROUNDS + 1):  # the first one meets names that are new
        spent, intake = _timed(repeats, lambda: parse_body(door, content_type, body, labelled=True))
        rows, names = intake.rows, intake.names_beside
        batch = as_batch([rows])
        times = [spent, _timed(repeats, partial(Request.of, rows, None, None, names))[0]]
        spent, outcome = _timed(repeats, partial(learner.learn, batch))
        times += [spent, _timed(repeats, partial(progress.count, batch, outcome))[0]]
        door.told(intake.names, 1)
        rounds.append([1e6 * seconds / n for seconds in times])
    return [min(times) for times in zip(*rounds[1:], strict=True)]


def _timed(repeats: int, call: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of one of so many calls, and what the last one returned."""
    began = time.process_time()
    for _ in range(repeats):
        result = call()
    return (time.process_time() - began) / repeats, result
