"""Parquet into a model, against pyarrow and SGDClassifier.partial_fit.

The client reads the file by row groups and sends it to a server with a SQLite store. The peer reads
the same file with pyarrow and learns in its own process: there is no server, nothing is durable and
nothing is learned only once. The peer hashes rows of several types with FeatureHasher. Rows of
models with `columns` are compared with NDJSON, too. All sides have both cores, and each round
learns into a new model.
"""

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from sklearn.feature_extraction import FeatureHasher
from sklearn.linear_model import SGDClassifier

from dualstream.client import Client, RowFile, kind_of
from dualstream.service.cli.demo.server_process import ServerProcess
from load_tests.measure import FEW_ROUNDS, Row, cpu_seconds, interleaved

TITLE = "From Parquet"
NUMBERS, EVENTS, COLUMNS = 500_000, 100_000, 20
PEER_BATCH = 10_000
HINGE: Mapping[str, Any] = {"algorithm": "dual_ascent", "loss": "hinge"}
SPECS: Mapping[str, Mapping[str, Any]] = {
    "numbers": {**HINGE, "features": {"kind": "indexed", "dim": COLUMNS}},
    "events": {**HINGE, "columns": {"types": {"zip": "category"}}},
}
WHAT = {"numbers": f"{COLUMNS} numbers", "events": "8 texts and numbers, `columns`"}
SGD = "pyarrow + SGDClassifier.partial_fit in a process, not durable"
NDJSON = "the same rows as NDJSON"
spent: dict[str, list[float]] = defaultdict(list)
"""Microseconds of CPU a row, of each run, by process."""


def rows() -> Iterator[Row]:
    """Rows a second of each side."""
    with (
        tempfile.TemporaryDirectory(prefix="dualstream-bench-") as folder,
        ServerProcess(f"sqlite:///{folder}/bench.db") as server,
        Client(server.url) as client,
    ):
        for name, table, features in (
            ("numbers", numbers(), _dense),
            ("events", events(), _hashed),
        ):
            path, lines = Path(folder, f"{name}.parquet"), Path(folder, f"{name}.ndjson")
            parquet.write_table(table, path, row_group_size=50_000)
            learned = partial(_learned, client, server.process.pid, name, len(table))
            sides: dict[str, Callable[[], float]] = {
                "Parquet": partial(learned, path),
                SGD: partial(_fitted, path, features, len(table)),
            }
            if name == "events":
                lines.write_text("\n".join(map(json.dumps, table.to_pylist())))
                sides[NDJSON] = partial(learned, lines)
            learned(path)  # loads the kernels
            spent.clear()
            figures = interleaved(sides, FEW_ROUNDS)
            what = f"`client.learn_file`, Parquet, {len(table):,} rows of {WHAT[name]}, SQLite"
            ours = figures.pop("Parquet")
            for peer, theirs in figures.items():
                cpu = (_both(".parquet"), min(spent["peer"]) if peer == SGD else _both(".ndjson"))
                yield Row(what, "rows/s", ours, peer, theirs, gate=1.0, cpu=cpu)


def _both(kind: str) -> float:
    """CPU of the client and the server."""
    return min(spent[f"client {kind}"]) + min(spent[f"server {kind}"])


def about() -> list[str]:
    """What the figures mean."""
    return [str(__doc__).partition("\n\n")[2].strip()]


def numbers() -> pa.Table:
    """Standard normal columns, named by their indices, and labels of a noisy hyperplane."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((NUMBERS, COLUMNS))
    noise = rng.standard_normal(NUMBERS)
    y = np.where(x @ rng.standard_normal(COLUMNS) + noise > 0, 1, 0)
    columns = {str(index + 1): x[:, index] for index in range(COLUMNS)}
    return pa.table({**columns, "y": y})


def events() -> pa.Table:
    """Clicks: texts, numbers and booleans."""
    rng = np.random.default_rng(1)
    zips = np.array([f"{code:05d}" for code in range(500)])
    return pa.table(
        {
            "site": np.array([f"site{one}" for one in range(200)])[rng.integers(0, 200, EVENTS)],
            "zip": zips[rng.integers(0, 500, EVENTS)],
            "device": rng.choice(["ios", "android", "web"], EVENTS),
            "country": rng.choice(["de", "fr", "us", "uk"], EVENTS),
            "member": rng.random(EVENTS) < 0.5,
            "price": rng.uniform(0, 99, EVENTS).round(2),
            "age": rng.integers(18, 90, EVENTS),
            "score": rng.standard_normal(EVENTS),
            "y": rng.integers(0, 2, EVENTS),
        }
    )


def _learned(client: Client, server: int, name: str, n: int, path: Path) -> float:
    client.create("bench", SPECS[name])
    before, own, began = cpu_seconds(server), time.process_time(), time.perf_counter()
    learned = client.learn_file("bench", RowFile(str(path), kind_of(str(path))))
    took = time.perf_counter() - began
    spent[f"client {path.suffix}"].append(1e6 * (time.process_time() - own) / n)
    spent[f"server {path.suffix}"].append(1e6 * (cpu_seconds(server) - before) / n)
    assert learned.learned == n, learned
    client.delete("bench")
    return n / took


def _fitted(path: Path, features: Callable[[pa.RecordBatch], Any], n: int) -> float:
    own, began = time.process_time(), time.perf_counter()
    model, count = SGDClassifier(), 0
    for batch in parquet.ParquetFile(path).iter_batches(PEER_BATCH):
        y = batch.column("y").to_numpy()
        model.partial_fit(features(batch.drop_columns(["y"])), y, classes=[0, 1])
        count += len(y)
    assert count == n
    spent["peer"].append(1e6 * (time.process_time() - own) / n)
    return n / (time.perf_counter() - began)


def _dense(batch: pa.RecordBatch) -> np.ndarray:
    return np.column_stack([column.to_numpy() for column in batch.columns])


def _hashed(batch: pa.RecordBatch) -> Any:
    return FeatureHasher(1 << 18).transform(batch.to_pylist())
