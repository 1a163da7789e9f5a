"""Profile of ingest: the service's own functions, called one after the other.

Rows come one chunk at a time, as the server takes them. The event loop, threads and snapshots are
not in these lines; they are the rest of the server's CPU.
"""

import asyncio
import http.client
import itertools
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import uvicorn
import uvloop
from google_crc32c import value as crc32c
from sklearn.linear_model import SGDClassifier

from dualstream.service.api.responses import answer_new
from dualstream.service.cli.demo.adult import adult_lines
from dualstream.service.codecs import ParsedRows, RowSchema, as_batch, parse_body
from dualstream.service.http.connection_limits import Connections, Limits
from dualstream.service.http.protocol import protocol_of
from dualstream.service.journal import open_journal
from dualstream.service.journal.chain import OURS
from dualstream.service.journal.protocol import AppendRequest, Part, PartPosition
from dualstream.service.replica.first_responses import FirstResponses
from dualstream.service.replica.requests import Request, receipts_of
from dualstream.service.replica.spec import canonical
from dualstream.solvers import Outcome, make_learner, make_progressive, resolve_spec
from dualstream.wire.chunking.chunks import CHUNK_BYTES, CHUNKERS, Chunking
from load_tests.http import SERVER_CORE, as_json
from load_tests.ingest.arrow import BATCH_ROWS as ARROW_ROWS, PEER_ROWS, record_batches, stream
from load_tests.ingest.bulk import SPECS, TYPES, ndjson_line
from load_tests.ingest.requests import BATCH_ROWS, json_batches, stores
from load_tests.measure import FEW_ROUNDS, on_core
from load_tests.peers.arrow_app import rows_of

STAGES = (
    "receiving by HTTP",
    "cutting into chunks",
    "reading the body",
    "encoding the record",
    "of it, the checksum",
    "appending, SQLite",
    "appending, Redis, without its own",
    "learning",
    "progressive metrics",
    "the answer",
)
PEER_STAGES = ("joining its pieces", "reading the stream", "stacking columns", "learning")
PEER_BODIES = (1000, PEER_ROWS, 25_000)
PIECE, FEW_COPIES = 256 * 1024, 8
"""Bytes received at once; number of bodies in a long one."""
PROTOCOL: Any = protocol_of(
    Connections(100, Limits(64 * 1024, 60.0, 60.0, 60.0), lambda reason: None, time.monotonic)
)
MIN_SENT = 32 * 1024 * 1024
"""Bytes of each upload that is only received."""
CHUNK_ROWS = 10_000
"""About as many rows of Adult as a chunk of a long body holds."""


def stage_table() -> list[str]:
    """Microseconds of CPU a row of each stage, the minimum of several rounds."""
    with stores() as urls, on_core(SERVER_CORE):
        sqlite, redis = urls["SQLite normal"], urls["Redis everysec"]
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as uvicorn has it
            columns = {
                name: runner.run(_stages(kind, type_, body, n, (sqlite, redis)))
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
    received, cut = await _receiving(body, content_type, n), _cutting(body, content_type, n)
    schema, learner, progress = RowSchema(spec), make_learner(spec), make_progressive(spec)
    repeats = max(1, CHUNK_ROWS // n)
    rounds = []
    for _ in range(FEW_ROUNDS + 1):  # the first one meets names that are new
        spent, parsed = _timed(
            repeats, lambda: parse_body(schema, content_type, body, labelled=True)
        )
        rows, names = parsed.rows, parsed.batch_names
        times = [spent]
        spent, request = _timed(repeats, partial(Request.of, rows, None, None, names))
        checksum, _ = _timed(repeats, partial(crc32c, request.parts[0].body))
        times += [
            spent,
            checksum,
            *[await _append(url, spec, request.parts, repeats) for url in urls],
        ]
        batch = as_batch([rows])
        spent, outcome = _timed(repeats, partial(learner.learn, batch))
        times += [spent, _timed(repeats, partial(progress.count, batch, outcome))[0]]
        times.append(_timed(repeats, partial(_answer, spec, schema, parsed, request, outcome))[0])
        schema.mark_journalled(parsed.names, 1)
        rounds.append([1e6 * seconds / n for seconds in times])
    return [received, cut, *[min(times) for times in zip(*rounds[1:], strict=True)]]


def peer_table() -> list[str]:
    """The same for the peer's steps with a row of Arrow, by rows in a body."""
    with on_core(SERVER_CORE), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        columns = {rows: runner.run(_peer_stages(rows)) for rows in PEER_BODIES}
    names = ("receiving by HTTP", *PEER_STAGES, "all of it")
    lines = [
        f"| {name} | " + " | ".join(f"{times[k]:.2f}" for times in columns.values()) + " |"
        for k, name in enumerate(names)
    ]
    head = " | ".join(f"bodies of {rows:,}" for rows in columns)
    return [f"| the peer's | {head} |", "|---|" + "---|" * len(columns), *lines]


async def _peer_stages(rows: int) -> list[float]:
    batches = record_batches()
    each = rows // ARROW_ROWS
    bodies = [stream(batches[at : at + each]) for at in range(0, len(batches), each)]
    received = await _receiving(bodies[0], TYPES["arrow"], rows, "auto")
    rounds = []
    for _ in range(FEW_ROUNDS):
        model, spent = SGDClassifier(), [0.0] * len(PEER_STAGES)
        for body in bodies:
            times, (x, y) = _peer_reads(body)
            fit, _ = _timed(1, partial(model.partial_fit, x, y, classes=[-1.0, 1.0]))
            spent = [a + b for a, b in zip(spent, (*times, fit), strict=True)]
        rounds.append([1e6 * seconds / (rows * len(bodies)) for seconds in spent])
    least = [received, *map(min, zip(*rounds, strict=True))]
    return [*least, sum(least)]


def _peer_reads(body: bytes) -> tuple[list[float], tuple[np.ndarray, np.ndarray]]:
    """The peer's reading of a body, and the CPU seconds of each step."""
    pieces = [body[at : at + PIECE] for at in range(0, len(body), PIECE)]
    joining, whole = _timed(1, partial(b"".join, pieces))
    reading, table = _timed(1, lambda: pa.ipc.open_stream(whole).read_all())
    stacking, rows = _timed(1, partial(rows_of, table))
    return [joining, reading, stacking], rows


def _answer(
    spec: dict[str, Any], schema: RowSchema, parsed: ParsedRows, request: Request, outcome: Outcome
) -> bytes:
    """The answer to a learned request, and the model attributes that it needs."""
    model: Any = SimpleNamespace(record=SimpleNamespace(id="stages"), row_schema=schema)
    positions = [PartPosition(1, len(outcome.scores), len(outcome.scores))]
    (receipt,) = receipts_of([request], [positions], outcome, FirstResponses(spec["task"]))
    return msgspec.json.encode(answer_new(model, parsed, receipt, False))


def _cutting(body: bytes, content_type: str, n: int) -> float:
    """Splitting a body of many chunks, received in pieces; 0 where it is not split."""
    if content_type not in CHUNKERS:
        return 0.0
    is_table = content_type == TYPES["arrow"]  # which has one head
    whole = stream(record_batches(FEW_COPIES * ARROW_ROWS)) if is_table else FEW_COPIES * body
    pieces = [whole[at : at + PIECE] for at in range(0, len(whole), PIECE)]

    def cut() -> None:
        chunking = Chunking(CHUNKERS[content_type](), 2 * CHUNK_BYTES)
        for piece in pieces:
            for _ in chunking.of(piece):
                pass
        for _ in chunking.rest():
            pass

    rows = n * FEW_COPIES
    return 1e6 * min(_timed(1, cut)[0] for _ in range(FEW_ROUNDS + 1)) / rows


async def _receiving(body: bytes, content_type: str, n: int, protocol: Any = PROTOCOL) -> float:
    """Uploads through the server's protocol class into an application that drops them.

    A body that can be split is repeated as one long body; other bodies are sent one by one.
    """

    async def drop(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        empty = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": empty})
        await send({"type": "http.response.body", "body": b""})

    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(drop, http=protocol, lifespan="off", log_level="warning")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    port = listening.getsockname()[1]
    is_long = content_type in CHUNKERS and protocol is PROTOCOL
    copies = max(1, MIN_SENT // len(body)) if content_type in CHUNKERS else 2000 // n
    try:
        times = []
        for _ in range(FEW_ROUNDS + 1):
            began = time.thread_time()
            await asyncio.to_thread(_send, port, body, copies, is_long)
            times.append(time.thread_time() - began)
        spent = min(times) / copies
    finally:
        server.should_exit = True
        await serving
    return 1e6 * spent / n


def _send(port: int, body: bytes, copies: int, is_long: bool) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for _ in range(1 if is_long else copies):
        length = {"Content-Length": str(len(body) * (copies if is_long else 1))}
        connection.request("POST", "/", itertools.repeat(body, copies) if is_long else body, length)
        connection.getresponse().read()
    connection.close()


async def _append(url: str, spec: dict[str, Any], parts: list[Part], repeats: int) -> float:
    """CPU seconds of this process, all threads, for one of `count` appends to a new model."""
    journal = await open_journal(url)
    try:
        record, _ = await journal.create("stages", canonical(spec), canonical(spec))
        count, began = sum(part.count for part in parts), time.process_time()
        for done in range(repeats):
            position = done * count
            await journal.append(
                AppendRequest("stages", record.incarnation, OURS.make(), position, parts)
            )
        spent = (time.process_time() - began) / repeats
        await journal.delete("stages")
        return spent
    finally:
        await journal.close()


def _timed(repeats: int, call: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of one of `count` calls, and the last call's result."""
    began = time.process_time()
    for _ in range(repeats):
        result = call()
    return (time.process_time() - began) / repeats, result
