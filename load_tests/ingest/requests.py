"""Learn and predict requests of JSON, sent by wrk, against River and scikit-learn in FastAPI.

For both sides the server is on core 0, wrk and Redis on core 1.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx

from dualstream.service.cli.demo.adult import adult_lines
from load_tests.http import (
    CONNECTIONS,
    GENERATOR_CORE,
    Load,
    Side,
    as_json,
    checked,
    ours,
    peer,
    send,
)
from load_tests.measure import Row, interleaved
from tests.redis_server import running_redis

SINGLES, BATCH_ROWS, BATCHES, BATCH_CONNECTIONS = 5000, 1000, 20, 8
MAX_SHARE = 0.9
"""Of a core: above it the generator would be what is measured."""


def single_rows() -> list[Row]:
    """One sample a request."""
    with tempfile.TemporaryDirectory(prefix="dualstream-bench-") as folder:
        bodies = Path(folder) / "bodies"
        bodies.write_text("\n".join(map(as_json, adult_lines()[:SINGLES])) + "\n")
        what = f"durable single-sample JSON learn, {CONNECTIONS} connections, one worker"
        return _against_river(what, Load(bodies), "/models/bench/learn", 1, (1.5, 2.0))


def batch_rows() -> list[Row]:
    """A thousand samples a request."""
    lines = adult_lines()[: BATCHES * BATCH_ROWS]
    with tempfile.TemporaryDirectory(prefix="dualstream-bench-") as folder:
        bodies = Path(folder) / "bodies"
        bodies.write_text("".join(f"{body}\n" for body in json_batches(lines)))
        what = (
            f"durable learn of JSON, {BATCH_ROWS:,} samples a request, {BATCH_CONNECTIONS} "
            "connections, one worker"
        )
        load = Load(bodies, connections=BATCH_CONNECTIONS)
        return _against_river(what, load, "/batch", BATCH_ROWS, (10.0, 20.0))


def json_batches(lines: Sequence[bytes]) -> Iterator[str]:
    for first in range(0, len(lines), BATCH_ROWS):
        yield f'{{"samples":[{",".join(map(as_json, lines[first : first + BATCH_ROWS]))}]}}'


def _against_river(
    what: str, load: Load, river_target: str, rows_each: int, gates: tuple[float, float]
) -> list[Row]:
    with stores() as urls, ExitStack() as stack:
        sides = {}
        for name, url in urls.items():
            side = stack.enter_context(ours(url, name.split()[1]))
            side.check = partial(checked, url, "bench", rows_each=rows_each)
            sides[name] = side
        river = stack.enter_context(peer("load_tests.peers.river_app:app"))
        river.target = river_target
        figures = interleaved(
            {name: _rate(load, side, rows_each) for name, side in {**sides, "peer": river}.items()}
        )
    rate = "requests/s" if rows_each == 1 else "rows/s"
    return [
        _row(f"{what}, {name}", rate, side, figures[name], river, figures["peer"], gates, rows_each)
        for name, side in sides.items()
    ]


def _rate(load: Load, side: Side, rows_each: int) -> Callable[[], float]:
    return lambda: rows_each * send(load, side)


def _row(
    what: str,
    unit: str,
    side: Side,
    figures: list[float],
    other: Side,
    others: list[float],
    gates: tuple[float, float],
    rows_each: int = 1,
    peer_name: str = "River in FastAPI, not durable",
) -> Row:
    share = max(side.generator_share)
    return Row(
        what,
        unit,
        figures,
        peer_name,
        others,
        gate=gates[0],
        goal=gates[1],
        notes=[
            f"generator's CPU share at most {share:.0%} (ours), {max(other.generator_share):.0%} "
            "(peer)"
        ],
        cpu=(min(side.server_cpu) / rows_each, min(other.server_cpu) / rows_each),
        void=side.void
        or other.void
        or ("the generator was the limit" if share > MAX_SHARE else ""),
    )


@contextmanager
def stores() -> Iterator[dict[str, str]]:
    """URLs of empty stores by name."""
    with tempfile.TemporaryDirectory(prefix="dualstream-bench-") as folder, ExitStack() as stack:
        redis = stack.enter_context(running_redis(appendfsync="everysec"))
        os.sched_setaffinity(redis.pid, {int(GENERATOR_CORE)})
        yield {"Redis everysec": redis.url, "SQLite normal": f"sqlite:///{folder}/bench.db"}


def predict_rows() -> list[Row]:
    """One row a request; our model and the peer have learned the same rows."""
    lines = adult_lines()
    with tempfile.TemporaryDirectory(prefix="dualstream-bench-") as folder, ExitStack() as stack:
        bodies = Path(folder) / "bodies"
        bodies.write_text("".join(f"{unlabelled(line)}\n" for line in lines[-SINGLES:]))
        url = f"sqlite:///{folder}/bench.db"
        side = stack.enter_context(ours(url, "normal"))
        text = b"\n".join(lines[:SINGLES]) + b"\n"
        learned = httpx.post(
            f"{side.url}{side.target}", content=text, headers={"Content-Type": "text/x-libsvm"}
        ).raise_for_status()
        side = replace(side, target="/models/bench/predict", check=partial(_unchanged, url))
        if learned.json()["seq"] != SINGLES:
            side.void = f"learned {learned.json()}"
        other = stack.enter_context(peer("load_tests.peers.sklearn_app:app"))
        other.target = side.target
        load = Load(bodies)
        figures = interleaved(
            {"ours": partial(send, load, side), "peer": partial(send, load, other)}
        )
    what = f"predict, one row, {CONNECTIONS} connections, one worker, SQLite normal"
    name = "scikit-learn's decision_function in FastAPI"
    gates = (2.0, 3.0)
    return [_row(what, "requests/s", side, figures["ours"], other, figures["peer"], gates, 1, name)]


def unlabelled(line: bytes) -> str:
    return json.dumps({"x": json.loads(as_json(line))["x"]}, separators=(",", ":"))


def _unchanged(url: str, answered: list[int]) -> str:
    """Empty if all predictions came from the learned rows and added none."""
    if set(answered) != {SINGLES}:
        return f"predictions at seqs {sorted(set(answered))[:5]}"
    return checked(url, "bench", [SINGLES], rows_each=SINGLES)
