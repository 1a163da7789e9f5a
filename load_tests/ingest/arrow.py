"""Arrow streams of 100 float columns, durable, against scikit-learn behind FastAPI, not durable.

For both sides the server is on core 0, the sender and Redis on core 1.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from load_tests.http import GENERATOR_CORE, SERVER_CORE, Side, peer
from load_tests.ingest.bulk import SPECS, TYPES, targets
from load_tests.ingest.upload import upload
from load_tests.measure import Row, cpu_seconds, interleaved, on_core

COLUMNS = int(SPECS["arrow"]["features"]["dim"])
ROWS, BATCH_ROWS = 50_000, 1000
PEER_ROWS = 5000
"""Rows in a body for the peer, which reads whole bodies."""
ALWAYS_ZERO_LOSS = 1.0
"""Mean hinge loss of the constant score 0."""


def arrow_rows() -> list[Row]:
    batches = record_batches()
    body = stream(batches)
    each = PEER_ROWS // BATCH_ROWS
    whole = [stream(batches[first : first + each]) for first in range(0, len(batches), each)]
    with (
        on_core(GENERATOR_CORE),
        targets("arrow", ALWAYS_ZERO_LOSS, SERVER_CORE) as sides,
        peer("load_tests.peers.arrow_app:app") as theirs,
    ):
        for side in sides.values():
            side.learn([body], ROWS)
            side.us_a_row.clear()
        figures = interleaved(
            {
                **{name: partial(side.learn, [body], ROWS) for name, side in sides.items()},
                "peer": partial(_peer_learns, theirs, whole),
            }
        )
    return [
        Row(
            f"durable learn of an Arrow stream, {COLUMNS} float64 columns, {ROWS:,} rows, "
            f"{len(body) / 1e6:.0f} MB in record batches of {BATCH_ROWS:,}, one worker, {name}",
            "rows/s",
            figures[name],
            f"pyarrow + SGDClassifier.partial_fit in FastAPI, bodies of {PEER_ROWS:,} rows, not "
            "durable",
            figures["peer"],
            gate=1.0,
            goal=2.0,
            notes=[side.got],
            void=side.void,
            cpu=(min(side.us_a_row)[0], min(theirs.server_cpu)),
        )
        for name, side in sides.items()
    ]


def _peer_learns(side: Side, bodies: Sequence[bytes]) -> float:
    before = cpu_seconds(side.server)
    done = upload(side.url, "/models/bulk/learn", TYPES["arrow"], bodies)
    side.server_cpu.append(1e6 * (cpu_seconds(side.server) - before) / ROWS)
    if done.counted != ROWS:
        raise RuntimeError(f"the peer learned {done.counted} of {ROWS} rows")
    return ROWS / done.seconds


def record_batches(rows: int = ROWS) -> list[pa.RecordBatch]:
    """Standard normal columns, and labels that agree with a hyperplane in nine of ten rows."""
    rng = np.random.default_rng(0)
    plane = rng.standard_normal(COLUMNS)
    batches = []
    for _ in range(0, rows, BATCH_ROWS):
        x = rng.standard_normal((BATCH_ROWS, COLUMNS))
        y = np.sign(x @ plane) * rng.choice([1.0, -1.0], BATCH_ROWS, p=[0.9, 0.1])
        columns = {str(index + 1): x[:, index].copy() for index in range(COLUMNS)}
        batches.append(pa.record_batch({**columns, "y": y}))
    return batches


def stream(batches: Sequence[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    text: bytes = sink.getvalue().to_pybytes()
    return text
