"""Rows, predictions and labels as topics: processes are killed, and each label is joined once.

One model reads the topics, or each of three reads the messages that have its name as their key.
DUALSTREAM_CHAOS_ROUNDS is the number of rounds (default 1), DUALSTREAM_CHAOS_SEED their seed.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from random import Random

import pytest

from dualstream.client import Client
from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.features import ALL
from dualstream.service.journal import open_journal
from dualstream.service.replica.replica import Replica
from dualstream.solvers import make_learner
from tests.chaos.check_models import _rows
from tests.chaos.report import Run, recorded
from tests.forked import ForkedProcess
from tests.history import read_all
from tests.ports import free_port
from tests.tansu import Broker, running_tansu

ROUNDS = int(os.environ.get("DUALSTREAM_CHAOS_ROUNDS", "1"))
SEED = int(os.environ.get("DUALSTREAM_CHAOS_SEED", "1"))
SPEC = {"algorithm": "dual_ascent", "features": {"kind": "indexed", "dim": 1 << 20}}
EVENTS, LOST = 2500, 5
"""Events of a round, and labels of rows that do not exist."""
WHAT = "rows, predictions and late labels on Kafka topics{}, all processes killed"
# Tansu begins a group after half of the session timeout.
SHORT = ("--kafka", "session.timeout.ms=1000", "--kafka", "heartbeat.interval.ms=200")
SETTLING_S = 120.0


class Loop:
    """A server, a process that scores, one that learns labels, and faults from a seed."""

    def __init__(self, run: Run, tansu: Broker, folder: Path, models: tuple[str, ...]) -> None:
        self.models = models
        self._run, self._tansu, self._chance = run, tansu, Random(SEED)
        self._port = free_port()
        self._log = (folder / "consumers.log").open("ab")
        self.dead = folder / "dead.ndjson"
        self.store = f"sqlite:///{folder / 'store.db'}"
        self.url = f"http://127.0.0.1:{self._port}"
        self.server = self._serve()
        self.written = 0
        with Client(self.url) as client:
            client.create("m", SPEC)
        self._spec = folder / "spec.json"
        self._spec.write_text(json.dumps(SPEC))
        tansu.create("rows", 2)
        tansu.create("outcomes", 2)
        tansu.create("scores")
        self.processes = [self._score(), self._label()]

    def _serve(self) -> ServerProcess:
        flags = ("--keep-records", "1000000", "--snapshot-every", "1000")
        return ServerProcess(self.store, [*flags, "--port", str(self._port)])

    def _score(self) -> ForkedProcess:
        create = ("--create", str(self._spec)) if len(self.models) > 1 else ()
        return self._consume("rows", "--predict-to", "scores", *create)

    def _label(self) -> ForkedProcess:
        dead = ("--dead-letter", str(self.dead))
        return self._consume("outcomes", "--labels", "--features", "rows", *dead)

    def _consume(self, topic: str, *flags: str) -> ForkedProcess:
        source = f"kafka://{self._tansu.brokers}/{topic}"
        command = [sys.executable, "-m", "dualstream.service", "consume", source]
        command += ["--route", "key"] if len(self.models) > 1 else ["--model", "m"]
        return ForkedProcess(
            [*command, "--url", self.url, *SHORT, "--batch-rows", "200", *flags],
            stdout=self._log,
            stderr=self._log,
        )

    def write(self) -> None:
        """Write labels in another order than their rows, and before most of them."""
        tags = [self.written + n + 1 for n in range(EVENTS)]
        self.written += EVENTS
        labels = [(tag, {"id": f"e{tag}", "y": tag % 2}) for tag in tags]
        labels += [(n, {"id": f"none{n}", "y": 1}) for n in range(LOST)]
        rows = [(tag, {"x": {str(tag): 1}, "id": f"e{tag}"}) for tag in tags]
        self._chance.shuffle(labels)
        half = EVENTS // 2
        self._send("rows", rows[:half:2], 0)
        self._send("rows", rows[1:half:2], 1)
        # One partition is ahead of the other, so that labels wait for their rows.
        self._send("rows", rows[half:], 0)
        self._send("outcomes", labels[::2], 0)
        self._send("outcomes", labels[1::2], 1)

    def model_of(self, tag: int) -> str:
        return self.models[tag % len(self.models)]

    def _send(self, topic: str, given: list[tuple[int, dict]], partition: int) -> None:
        keys = [self.model_of(tag).encode() for tag, _ in given]
        self._tansu.send(topic, [json.dumps(one).encode() for _, one in given], partition, keys)

    def fault(self, number: int) -> None:
        """Kill the processes at seeded moments while labels are learned."""
        before = self.learned()
        self.write()
        for which in (0, 1):
            self._until(lambda: self.learned() > before)
            time.sleep(self._chance.uniform(0.0, 0.3))
            self.processes[which].kill()
            self.processes[which].wait()
            self._run.faults[("scorer killed", "labeller killed")[which]] += 1
            self.processes[which] = (self._score, self._label)[which]()
        if number % 3 == 2:
            self.server.kill()
            self._run.faults["server killed"] += 1
            self.server = self._serve()

    def learned(self) -> int:
        with Client(self.url) as client:
            return sum(client.get(model.id).samples or 0 for model in client.models())

    def refused(self) -> list[dict]:
        """The dead letters of labels; the last line may be under way."""
        return [json.loads(line) for line in self.dead.read_text().split("\n")[:-1]]

    def settle(self) -> None:
        """Wait until all labels are read."""
        lost = LOST * self.written // EVENTS

        def is_settled() -> bool:
            # A process that is killed before the cursor has moved writes its letters again.
            letters = {(one["source"], one["offset"]) for one in self.refused()}
            return self.learned() == self.written and len(letters) == lost

        self._until(is_settled)

    def _until(self, done) -> None:
        deadline = time.monotonic() + SETTLING_S
        while not done():
            assert time.monotonic() < deadline, self.learned()
            time.sleep(0.05)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.server.kill()
        self._log.close()


async def check(loop: Loop, model: str, digest: str) -> None:
    """Each row of a model is journalled once, with its label and its score as it was served."""
    journal = await open_journal(loop.store)
    try:
        record = await journal.get(model)
        replayed = Replica(record, ALL)
        await replayed.catch_up(journal)
        entries = await read_all(journal, model, record.incarnation)
        batch = _rows(entries, replayed.dim)
        learner = make_learner(replayed.spec)
        learner.learn(batch)
        for name, values in learner.state().items():
            assert replayed.learner.state()[name].tobytes() == values.tobytes(), name
        assert replayed.capture().state_digest() == digest
        pages = [page async for page in journal.kept_rows(model, record.incarnation)]
        assert not any(pages)
    finally:
        await journal.close()
    tags = (batch.indices + 1).tolist()
    assert sorted(tags) == [
        tag for tag in range(1, loop.written + 1) if loop.model_of(tag) == model
    ]
    assert [y > 0 for y in batch.labels.tolist()] == [tag % 2 == 1 for tag in tags]


MODELS = {"many": ("m", "n", "o")}
if "DUALSTREAM_CHAOS_ROUNDS" in os.environ:  # `make chaos`
    MODELS["one"] = ("m",)


@pytest.mark.parametrize("models", MODELS.values(), ids=MODELS)
def test_every_label_is_joined_once(tmp_path, models):
    what = WHAT.format(" of three models" * (len(models) > 1))
    with recorded(Run(what, "SQLite `normal`", seeds=[SEED])) as run:
        with running_tansu(tmp_path / "tansu.log") as tansu:
            loop = Loop(run, tansu, tmp_path, models)
            try:
                for number in range(ROUNDS):
                    loop.fault(number)
                loop.settle()
                with Client(loop.url) as client:
                    results = [client.get(model, digest=True) for model in models]
            finally:
                loop.end()
            written = tansu.whole("scores")
        for model in results:
            asyncio.run(check(loop, model.id, model.state_digest))
        scored = [json.loads(one.value()) for one in written]
        assert {(one["model"], one["id"]) for one in scored} == {
            (loop.model_of(tag), f"e{tag}") for tag in range(1, loop.written + 1)
        }
        ids = [one["id"] for one in scored]
        assert all(one.key().decode() == id_ for one, id_ in zip(written, ids, strict=True))
        letters = loop.refused()
        assert {json.loads(one["value"])["id"] for one in letters} == {
            f"none{n}" for n in range(LOST)
        }
        assert all("unknown-sample" in one["reason"] for one in letters)
        run.acknowledged += loop.written
    assert run.outcome == "passed"
