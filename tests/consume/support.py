"""Consumers over logs in memory."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dualstream.consume.loop import Consumer
from dualstream.consume.predictions import Predictions
from dualstream.consume.reader import Bounds, ReaderError
from dualstream.consume.routed_models import RoutedModels
from dualstream.consume.rows import RowLines
from tests.consume.fakes import FakeLog, FakeReader, FakeServer, Topic, refused
from tests.forked import ForkedProcess

A, B, C = "kafka/t/0", "kafka/t/1", "kafka/t/2"


def row(number: int) -> bytes:
    return json.dumps({"x": {"n": number}, "y": number % 2}).encode()


def numbers(server: FakeServer) -> list[int]:
    return [one["x"]["n"] for one in server.learned]


class Letters:
    """Dead letters in memory; the first `failures` writes fail."""

    def __init__(self, failures: int = 0) -> None:
        self.written = []
        self.failures = failures

    def write(self, letters) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("the disk is full")
        self.written += [(one.message.source, one.message.offset, one.reason) for one in letters]


def consumer(reader: FakeReader, server: FakeServer, **options) -> Consumer:
    options = {"max_rows": 4, "max_bytes": 10_000, "max_wait_s": 0.0} | options
    options.setdefault("dead", Letters())
    lines = options.pop("lines", RowLines())
    return Consumer(reader, server, lines, options.pop("dead"), **options)


def drained(consumer: Consumer, reader: FakeReader, server: FakeServer, turns: int = 60) -> None:
    """Run until the model's cursors are at the ends of the log."""
    for _ in range(turns):
        consumer.turn()
        ends = {name: reader.log.bounds(name).end for name in reader.mine}
        if all(server.cursors.get(name, 0) == end for name, end in ends.items()):
            return
    raise AssertionError(f"{server.cursors} {server.requests}")


def features(number: int, **more) -> bytes:
    return json.dumps({"x": {"n": number}, "id": f"v{number}"} | more).encode()


def predicting(reader: FakeReader, server: FakeServer, topic: Topic, **options) -> Consumer:
    said = options.pop("said", [])
    one = consumer(reader, server, **options)
    one._step = Predictions(server, topic, one.counters, said.append)
    return one


class Rows:
    """The topic of the rows, as a log in memory."""

    def __init__(self, cursors: Callable[[], dict[str, int]], log: FakeLog, *sources: str) -> None:
        self._cursors, self._log, self._sources = cursors, log, sources
        self.failures = 0

    def ends(self):
        if self.failures:
            self.failures -= 1
            raise OSError("the broker is away")
        return {name: self._log.bounds(name).end for name in self._sources}

    def is_read(self, ends):
        cursors = self._cursors()
        return all(cursors.get(name, 0) >= end for name, end in ends.items())


def samples(text: str) -> dict[str, float]:
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


class Unknown(FakeServer):
    def sources(self):
        raise refused(404, "unknown-model")


class Group:
    """Committed offsets; the first `failures` commits fail. The log is from `first` to `end`."""

    def __init__(self) -> None:
        self.offsets: dict[str, int] = {}
        self.first, self.end = 0, 1_000_000
        self.failures = 0

    def check_cursor(self, source: str, cursor: int) -> None:
        if cursor > self.end:
            raise ReaderError(f"{source}: the model's cursor is {cursor}, but the log ends")

    def bounds(self, source: str) -> Bounds:
        return Bounds(self.first, self.end, self.first)

    def committed(self) -> dict[str, int]:
        return dict(self.offsets)

    def commit(self, source: str, offset: int) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("the broker is away")
        self.offsets[source] = offset


class World:
    """Models of one server, and a group; `routed` makes the consumers."""

    def __init__(self, *models: str) -> None:
        self.models = {model: FakeServer() for model in models}
        self.group, self.dead, self.unknown = Group(), Letters(), Unknown()
        self.said = list[str]()

    def routed(self, reader: FakeReader, route="value.meta.tenant", create=None, **options):
        models = lambda model: self.models.get(model, self.unknown)  # noqa: E731
        server = RoutedModels(route, models, self.group, create, self.said.append)
        return consumer(reader, server, dead=self.dead, **options)

    def drained(self, one: Consumer, reader: FakeReader, turns: int = 100) -> None:
        for _ in range(turns):
            one.turn()
            if all(self.group.offsets.get(n) == reader.log.bounds(n).end for n in reader.mine):
                return
        raise AssertionError(self.group.offsets)


def until(done: Callable[[], bool], *consumers: Consumer, seconds: float = 30.0) -> None:
    """Let consumers run by turns until something is so."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        for one in consumers:
            one.turn()


@contextmanager
def started(server, source: str, *flags: str) -> Iterator[ForkedProcess]:
    """The command in a process of its own, which is killed if it has not ended."""
    command = [sys.executable, "-m", "dualstream.service", "consume", source, "--model", "clicks"]
    process = ForkedProcess([*command, "--url", server.url, *flags], stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
