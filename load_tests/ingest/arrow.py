"""Arrow streams of 100 float columns, durable, against scikit-learn behind FastAPI, not durable.

The servers are on core 0, the sender and Redis on core 1, for both sides alike.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from load_tests.http import GENERATOR_CORE, SERVER_CORE, Side, peer
from load_tests.ingest.bulk import SPECS, TYPES, Target, targets
from load_tests.ingest.upload import upload
from load_tests.measure import Row, interleaved, on_core

COLUMNS = int(SPECS["arrow"]["features"]["dim"])
BODY_ROWS, BODIES = 5000, 10
CONNECTIONS = 2
"""One body is on its way while the server is at work on another."""
ALWAYS_ZERO_LOSS = 1.0
"""The mean hinge loss of whoever always answers 0."""


def arrow_rows() -> list[Row]:
    bodies = arrow_bodies()
    n = BODY_ROWS * BODIES
    with (
        on_core(GENERATOR_CORE),
        targets("arrow", ALWAYS_ZERO_LOSS, SERVER_CORE) as sides,
        peer("load_tests.peers.arrow_app:app") as theirs,
    ):
        for side in sides.values():
            side.learn(bodies[:1], BODY_ROWS)
            side.us_a_row.clear()
        figures = interleaved(
            {
                **{
                    name: partial(side.learn, bodies, n, CONNECTIONS)
                    for name, side in sides.items()
                },
                "peer": partial(_peer_learns, theirs, bodies, n),
            }
        )
    return [_row(name, side, n, bodies, figures) for name, side in sides.items()]


def _row(
    name: str, side: Target, n: int, bodies: Sequence[bytes], figures: dict[str, list[float]]
) -> Row:
    return Row(
        f"durable learn of Arrow streams, {COLUMNS} float64 columns, {n:,} rows, "
        f"{sum(map(len, bodies)) / 1e6:.0f} MB in bodies of {BODY_ROWS:,} rows, {CONNECTIONS} "
        f"connections, one worker, {name}",
        "rows/s",
        figures[name],
        "pyarrow + SGDClassifier.partial_fit in FastAPI, not durable",
        figures["peer"],
        gate=1.0,
        goal=2.0,
        notes=[side.told],
        void=side.void,
    )


def _peer_learns(side: Side, bodies: Sequence[bytes], n: int) -> float:
    done = upload(side.url, "/models/bulk/learn", TYPES["arrow"], bodies, CONNECTIONS)
    if done.counted != n:
        raise RuntimeError(f"the peer learned {done.counted} of {n} rows")
    return n / done.seconds


def arrow_bodies(count: int = BODIES) -> list[bytes]:
    """Standard normal columns, and labels that a hyperplane gives nine times in ten."""
    rng = np.random.default_rng(0)
    plane = rng.standard_normal(COLUMNS)
    return [_stream(rng, plane) for _ in range(count)]


def _stream(rng: np.random.Generator, plane: np.ndarray) -> bytes:
    x = rng.standard_normal((BODY_ROWS, COLUMNS))
    y = np.sign(x @ plane) * rng.choice([1.0, -1.0], BODY_ROWS, p=[0.9, 0.1])
    columns = {str(place + 1): x[:, place].copy() for place in range(COLUMNS)}
    table = pa.table({**columns, "y": y})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    text: bytes = sink.getvalue().to_pybytes()
    return text
