"""Recovery: speed of a replica that loads a journal without a snapshot, and a profile.

The journal is written through the journal protocol, with parts encoded as the committer encodes
them: entries of 64 requests of one row each, as from 64 waiting connections, and entries of one.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from dualstream.service.codecs import ListedRows
from dualstream.service.features import ALL
from dualstream.service.journal import open_journal
from dualstream.service.journal.chain import OURS, next_chain
from dualstream.service.journal.protocol import AppendRequest, Entry, Journal, Part
from dualstream.service.journal.record import decode_merged
from dualstream.service.replica.entries import as_batch
from dualstream.service.replica.recovery import recover
from dualstream.service.replica.replica import READ_BYTES, Replica
from dualstream.service.replica.requests import Request
from dualstream.service.replica.spec import canonical
from dualstream.solvers import Batch, make_learner, make_progressive, resolve_spec
from load_tests.http import CONNECTIONS, GENERATOR_CORE, SERVER_CORE, SPEC
from load_tests.kernel import adult
from load_tests.measure import FEW_ROUNDS, Row, cpu_seconds, interleaved, on_core
from tests.redis_server import running_redis

TITLE = "Recovery"
STAGES = (
    "reading from the store, ours",
    "reading from the store, the server's",
    "chain values",
    "parts, checksums and rows",
    "checking the batch",
    "learning",
    "progressive metrics",
    "all of `Replica.load`, ours",
)
_profiles: dict[str, list[float]] = {}
_pids: dict[str, int] = {}
"""Of the stores that are servers."""
GROUPED, SINGLE = 1_000_000, 100_000
DIM = 123


def rows() -> list[Row]:
    with stores() as urls:
        sides: dict[str, Callable[[], float]] = {"kernel": kernel_rate}
        for store, url in urls.items():
            asyncio.run(write(url, "grouped", GROUPED, CONNECTIONS))
            asyncio.run(write(url, "single", SINGLE, 1))
            for model in ("grouped", "single"):
                sides[f"{store} {model}"] = partial(replayed, url, model)
        with on_core(SERVER_CORE):
            figures = interleaved(sides, FEW_ROUNDS)
            for store, url in urls.items():
                for model in ("grouped", "single"):
                    _profiles[f"{store}, {model}"] = asyncio.run(stages(url, model))
    shown = {
        "grouped": (f"entries of {CONNECTIONS} one-row requests, {GROUPED:,} rows", 1e6),
        "single": (f"entries of one row, {SINGLE:,} rows", 0.3e6),
    }
    return [
        Row(
            f"replay of a journal, {what}, {store}",
            "rows/s",
            figures[f"{store} {model}"],
            "the kernel alone, rows in memory",
            figures["kernel"],
            floor=floor,
        )
        for model, (what, floor) in shown.items()
        for store in urls
    ]


@contextmanager
def stores() -> Iterator[dict[str, str]]:
    """Empty stores by name."""
    with tempfile.TemporaryDirectory(prefix="dualstream-bench-") as folder, ExitStack() as stack:
        redis = stack.enter_context(running_redis(appendfsync="everysec"))
        os.sched_setaffinity(redis.pid, {int(GENERATOR_CORE)})
        _pids[redis.url] = redis.pid
        yield {
            "SQLite normal": f"sqlite:///{Path(folder) / 'bench.db'}",
            "Redis everysec": redis.url,
        }


async def write(url: str, model: str, count: int, together: int) -> None:
    """A journal of `count` rows of Adult, with `group` requests of one row in each entry."""
    parts = [part_of(row) for row in each_row(adult())]
    journal = await open_journal(url)
    try:
        spec = canonical(resolve_spec(SPEC))
        record, _ = await journal.create(model, spec, spec)
        for first in range(0, count, together):
            group = [parts[at % len(parts)] for at in range(first, min(first + together, count))]
            await journal.append(
                AppendRequest(model, record.incarnation, OURS.make(), first, group)
            )
    finally:
        await journal.close()


def each_row(batch: Batch) -> Iterator[Batch]:
    for row in range(len(batch)):
        yield batch[row : row + 1]


def part_of(row: Batch) -> Part:
    """A part as the committer encodes a sample from JSON."""
    columns = (row.indptr, row.indices, row.values, row.labels, row.weights)
    return Request.of(ListedRows(*(column.tolist() for column in columns), DIM), None, None).parts[
        0
    ]


def replayed(url: str, model: str) -> float:
    """Rows a second of a replica that loads its journal."""

    async def load() -> float:
        journal = await open_journal(url)
        try:
            replica = Replica(await journal.get(model), ALL)
            began = time.perf_counter()
            await recover(replica, journal)
            return replica.seq / (time.perf_counter() - began)
        finally:
            await journal.close()

    return asyncio.run(load())


def kernel_rate() -> float:
    """Rows a second of the learner alone, in slices as a replica takes them."""
    batch, learner = adult(10), make_learner(resolve_spec(SPEC))
    began = time.perf_counter()
    for first in range(0, len(batch), 16_384):
        learner.learn(batch[first : first + 16_384])
    return len(batch) / (time.perf_counter() - began)


async def stages(url: str, model: str) -> list[float]:
    """CPU time of each of STAGES in us a row, the minimum of several rounds."""
    journal = await open_journal(url)
    try:
        record = await journal.get(model)
        rounds = [await stages_once(journal, record, url) for _ in range(FEW_ROUNDS)]
    finally:
        await journal.close()
    return [min(times) for times in zip(*rounds, strict=True)]


async def stages_once(journal: Journal, record: Any, url: str) -> list[float]:
    spec = resolve_spec(SPEC)
    spent = [0.0] * len(STAGES)
    clock = Stopwatch(spent)
    learner, progress = make_learner(spec), make_progressive(spec)
    seq = 0
    while seq < record.seq:
        with clock.stage(0), clock.of_process(1, _pids.get(url)):
            entries = list(await journal.read(record.id, record.incarnation, seq, READ_BYTES))
        with clock.stage(2):
            check_chain(entries)
        with clock.stage(3):
            _, blocks = decode_merged(b"".join(entry.body for entry in entries))
        for rows in blocks:
            with clock.stage(4):
                batch = as_batch(rows, DIM)  # type: ignore[arg-type]
            with clock.stage(5):
                outcome = learner.learn(batch)
            with clock.stage(6):
                progress.count(batch, outcome)
        seq = entries[-1].seq
    with clock.stage(7):
        await recover(Replica(record, ALL), journal)
    return [1e6 * seconds / seq for seconds in spent]


def check_chain(entries: list[Entry]) -> None:
    for before, entry in zip(entries, entries[1:], strict=False):
        if next_chain(before.chain, entry.nonce) != entry.chain:
            raise RuntimeError("the journal is damaged")


class Stopwatch:
    """Adds CPU seconds to the stages in which they are spent."""

    def __init__(self, spent: list[float]) -> None:
        self._spent = spent

    @contextmanager
    def stage(self, number: int) -> Iterator[None]:
        began = time.process_time()
        yield
        self._spent[number] += time.process_time() - began

    @contextmanager
    def of_process(self, number: int, pid: int | None) -> Iterator[None]:
        """The same for another process; does nothing without one."""
        began = cpu_seconds(pid) if pid else 0.0
        yield
        self._spent[number] += (cpu_seconds(pid) - began) if pid else 0.0


def about() -> list[str]:
    """Set-up of the benchmark, and a profile."""
    names = list(_profiles)
    return [
        "`python -m load_tests recovery` runs these alone: a new replica, no snapshot, the whole "
        f"journal. Model `{canonical(SPEC).decode()}`, Adult (14 non-zeros a row); ours on one "
        "core, Redis on the other.",
        "",
        f"Profile, us of CPU a row, minimum of {FEW_ROUNDS} rounds:",
        "",
        "| what | " + " | ".join(names) + " |",
        "|---|" + "---|" * len(names),
        *(
            f"| {stage} | " + " | ".join(f"{_profiles[name][number]:.2f}" for name in names) + " |"
            for number, stage in enumerate(STAGES)
        ),
    ]
