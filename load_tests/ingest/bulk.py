"""Bulk text, durable, against Vowpal Wabbit's command line on the same rows.

No process is pinned: both sides have the whole machine. Each round learns into a new model, so that
the model's journal does not grow, and ends with the history check.
"""

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from dualstream.service.cli.demo.adult import adult_lines, sample_of
from dualstream.service.journal import open_journal
from load_tests.http import check_spans, create, serving
from load_tests.ingest.upload import Upload, upload
from load_tests.ingest.vw import OPTIONS, rows_per_s
from load_tests.measure import Row, cpu_seconds, interleaved
from tests.history import read_all
from tests.redis_server import running_redis

COPIES, NAMED_COPIES = 20, 5
WARM_ROWS = 50_000
MAJORITY_LOSS = 0.4816
"""Mean hinge loss of the constant -1 on Adult: twice the share of positive labels."""
MAX_JOURNAL_BYTES = 60.0
"""Of a row of a9a."""
HINGE: Mapping[str, Any] = {"algorithm": "dual_ascent", "loss": "hinge"}
SPECS: Mapping[str, Mapping[str, Any]] = {
    "libsvm": {**HINGE, "features": {"kind": "indexed", "dim": 123}},
    "ndjson": {**HINGE, "features": {"kind": "hashed"}},
    "arrow": {**HINGE, "features": {"kind": "indexed", "dim": 100}},
}
TYPES = {
    "libsvm": "text/x-libsvm",
    "ndjson": "application/x-ndjson",
    "arrow": "application/vnd.apache.arrow.stream",
}


@dataclass
class Target:
    """A server of ours, and the costs of uploads to it."""

    url: str
    store: str
    server: int
    store_pid: int | None
    most_loss: float
    """Learning nothing would have this loss: a run that has it is void."""
    kind: str
    us_a_row: list[tuple[float, float, float]] = field(default_factory=list)
    """CPU of the server, the store and the sender, of each run."""
    journal_bytes: float = 0.0
    """Of entries' bodies, a row, in the last run."""
    void: str = ""

    def learn(self, bodies: Sequence[bytes], n: int) -> float:
        """Rows a second of one upload into a new model."""
        create(self.url, "bulk", SPECS[self.kind])
        before = self._cpu()
        done = upload(self.url, "/models/bulk/learn", TYPES[self.kind], bodies)
        spent = [after - was for after, was in zip(self._cpu(), before, strict=True)]
        server, store = spent
        self.us_a_row.append((1e6 * server / n, 1e6 * store / n, 1e6 * done.cpu_s / n))
        self.void = self.void or self._wrong(done, n)
        httpx.delete(f"{self.url}/models/bulk", timeout=60).raise_for_status()
        return n / done.seconds

    def _cpu(self) -> tuple[float, float]:
        return cpu_seconds(self.server), cpu_seconds(self.store_pid) if self.store_pid else 0.0

    def _wrong(self, done: Upload, n: int) -> str:
        if done.counted != n:
            return f"{done.counted:,} of {n:,} rows were answered"
        if not done.loss < self.most_loss:
            return f"mean loss {done.loss}"
        self.journal_bytes = asyncio.run(_journal_bytes(self.store)) / n
        return asyncio.run(check_spans(self.store, "bulk", done.spans))

    @property
    def got(self) -> str:
        server, store, sender = (min(parts) for parts in zip(*self.us_a_row, strict=True))
        return (
            f"CPU a row, the least: server {server:.2f} us, store's server {store:.2f} us, sender "
            f"{sender:.2f} us; {self.journal_bytes:.1f} B of journal a row"
        )


async def _journal_bytes(store: str) -> int:
    journal = await open_journal(store)
    try:
        record = await journal.get("bulk")
        entries = await read_all(journal, "bulk", record.incarnation)
        return sum(len(entry.body) for entry in entries)
    finally:
        await journal.close()


@contextmanager
def targets(kind: str, most_loss: float, core: str | None = None) -> Iterator[dict[str, Target]]:
    """A server on each store, by the store's name.

    Redis does not rewrite its append-only file: a rewrite would dump the journal, which is kept
    whole for the checker and which snapshots would otherwise trim.
    """
    with tempfile.TemporaryDirectory(prefix="dualstream-bench-") as folder, ExitStack() as stack:
        options = {"appendfsync": "everysec", "auto-aof-rewrite-percentage": "0"}
        redis = stack.enter_context(running_redis(**options))
        stores = {
            "Redis everysec": (redis.url, "everysec", redis.pid),
            "SQLite normal": (f"sqlite:///{folder}/bench.db", "normal", None),
        }
        loaders = {}
        for name, (url, durability, pid) in stores.items():
            # Load the family's kernels before the first round.
            sides = stack.enter_context(serving(url, durability, {"warm": SPECS[kind]}, core))
            side = sides["warm"]
            loaders[name] = Target(side.url, url, side.server, pid, most_loss, kind)
        yield loaders


def in_memory() -> str | None:
    """A folder in /dev/shm where available."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def libsvm_rows() -> list[Row]:
    """a9a as LIBSVM text, and the bytes of its rows in the journal."""
    lines = adult_lines() * COPIES
    theirs = [line.replace(b" ", b" | ", 1).replace(b":1", b"") for line in lines]
    gates = {"Redis everysec": (1.5, 2.0), "SQLite normal": (1.2, 1.5)}
    what = f"durable learn of a9a x {COPIES} as LIBSVM text"
    rows, sides = _against_vw("libsvm", what, lines, theirs, gates)
    stored_bytes = max(side.journal_bytes for side in sides)
    size = Row(
        "journal bytes of a row of a9a, uploaded as LIBSVM text",
        "B",
        [stored_bytes],
        "the most it may be",
        [MAX_JOURNAL_BYTES],
        gate=1.0,
        smaller_is_better=True,
    )
    return [*rows, size]


def ndjson_rows() -> list[Row]:
    """Rows with named features, hashed by both sides."""
    ours = [ndjson_line(line) for line in adult_lines()]
    theirs = [vw_line(sample_of(line)) for line in adult_lines()]
    gates = {"Redis everysec": (0.5, 0.7), "SQLite normal": (0.5, 0.7)}
    what = f"durable learn of Adult x {NAMED_COPIES} as NDJSON, 14 named features, hashed"
    rows, _ = _against_vw("ndjson", what, ours * NAMED_COPIES, theirs * NAMED_COPIES, gates)
    return rows


def ndjson_line(line: bytes) -> bytes:
    """A row by names, as a user writes it."""
    return json.dumps(sample_of(line), separators=(",", ":")).encode()


def vw_line(sample: Mapping[str, Any]) -> bytes:
    """The row in Vowpal Wabbit's format, whose names have no space, colon or bar."""
    names = " ".join(f"{name}={text.replace(' ', '_')}" for name, text in sample["x"].items())
    return f"{sample['y']} | {names}".encode()


def _against_vw(
    kind: str,
    what: str,
    lines: Sequence[bytes],
    theirs: Sequence[bytes],
    gates: Mapping[str, tuple[float, float]],
) -> tuple[list[Row], list[Target]]:
    n, text = len(lines), b"\n".join(lines) + b"\n"
    with (
        tempfile.TemporaryDirectory(prefix="dualstream-bench-", dir=in_memory()) as memory,
        targets(kind, MAJORITY_LOSS) as sides,
    ):
        file, spent = Path(memory) / "rows.vw", list[float]()
        file.write_bytes(b"\n".join(theirs) + b"\n")
        for side in sides.values():
            side.learn([b"\n".join(lines[:WARM_ROWS])], WARM_ROWS)
            side.us_a_row.clear()
        figures = interleaved(
            {
                **{name: partial(side.learn, [text], n) for name, side in sides.items()},
                "vw": partial(rows_per_s, file, n, spent=spent),
            }
        )
    rows = [
        Row(
            f"{what}, {n:,} rows, one body of {len(text) / 1e6:.0f} MB, one worker, {name}",
            "rows/s",
            figures[name],
            f"Vowpal Wabbit, `{' '.join(OPTIONS)}`, not durable",
            figures["vw"],
            gate=gates[name][0],
            goal=gates[name][1],
            notes=[side.got],
            void=side.void,
            cpu=(min(side.us_a_row)[0], min(spent)),
        )
        for name, side in sides.items()
    ]
    return rows, list(sides.values())
