"""A history while the server is killed: each event enters once, and each label is learned once,
revised ones too.

`make test` runs a sample of the kills, `make chaos` DUALSTREAM_CHAOS_ROUNDS times as many.
DUALSTREAM_CHAOS_SEED is the seed.
"""

import asyncio
import os
import signal
import threading
import time
from contextlib import suppress
from random import Random

import httpx

from dualstream.service.cli.demo.server_process import ServerProcess
from tests.chaos.pasts import SPEC, assert_columns_follow_from_the_journal, records_of
from tests.chaos.report import Run, recorded
from tests.redis_server import redis_or_skip
from tests.service.server.support import children
from tests.service.support import loaded

KILLS = 3 * int(os.environ.get("DUALSTREAM_CHAOS_ROUNDS", "1"))
SEED = int(os.environ.get("DUALSTREAM_CHAOS_SEED", "1"))
CLIENTS, WITHIN_S = 4, 120.0


class Clients:
    """Threads that send events, each until the server has answered it."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.counts = {"learn": 0, "observe": 0, "remember": 0, "revise": 0}
        self.done = 0
        self._lock, self._is_stopping = threading.Lock(), threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def wait_for(self, events: int) -> None:
        deadline, wanted = time.monotonic() + WITHIN_S, self.done + events
        while self.done < wanted:
            assert time.monotonic() < deadline and not self._errors, self._errors
            time.sleep(0.005)

    def stop(self) -> None:
        self._is_stopping.set()
        for thread in self._threads:
            thread.join(WITHIN_S)
        assert self._errors == []

    def _run(self, client: int) -> None:
        chance, number = Random(f"{SEED} {client}"), 0
        try:
            while not self._is_stopping.is_set():
                number += 1
                way = chance.choice(["learn", "observe", "remember"])
                event = _event(chance, client, number)
                self._send(way, event)
                revisions = chance.choice([0, 1, 2]) if way == "remember" else 0
                for y in [1 - _label_of(event), _label_of(event)][:revisions]:
                    self._post("labels?revise=true", {"id": event["tx"], "y": y})
                with self._lock:
                    self.counts["revise"] += revisions
                    self.counts[way] += 1
                    self.done += 1
        except BaseException as error:  # shown by the thread of the test
            self._errors.append(error)

    def _send(self, way: str, event: dict) -> None:
        label = {"id": event["tx"], "y": _label_of(event)}
        if way == "learn":
            self._post("learn", event | {"y": label["y"]})
        elif way == "observe":
            self._post("observe", event)
        else:
            # A repeated prediction leaves the row that waits as it is.
            self._post("predict?remember=true", event)
            self._post("labels?revise=true", label)

    def _post(self, route: str, body: dict) -> None:
        deadline = time.monotonic() + WITHIN_S
        while time.monotonic() < deadline:
            with suppress(httpx.TransportError):
                answer = httpx.post(f"{self.url}/models/m/{route}", json=body, timeout=20)
                if answer.status_code == 200:
                    return
                assert answer.status_code == 503, answer.text
            time.sleep(0.02)
        raise AssertionError(f"no answer to {route}")


def _label_of(event: dict) -> int:
    return len(event["tx"]) % 2


def _event(chance: Random, client: int, number: int) -> dict:
    return {
        "tx": f"{client}-{number}",
        "at": 1.75e9 + 60 * number + chance.choice([0, -4000]),
        "card": chance.randrange(20),
        "amount": round(chance.expovariate(0.02), 2),
        "site": chance.choice("abc"),
    }


def kill_again_and_again(run: Run, store: str, log) -> None:
    chance = Random(SEED)
    flags = ["--workers", "2", "--snapshot-every", "150", "--keep-records", "1000000"]

    def started(*more: str) -> ServerProcess:
        with log.open("ab") as output:
            return ServerProcess(store, [*flags, *more], stderr=output.fileno())

    server = started()
    try:
        httpx.put(f"{server.url}/models/m", json=SPEC).raise_for_status()
        clients = Clients(int(server.url.rpartition(":")[2]))
        for number in range(KILLS):
            clients.wait_for(chance.randint(20, 80))
            workers = children(server)
            if number % 3 == 2:
                _kill(chance.choice(sorted(workers)))
                run.faults["worker killed"] += 1
                continue
            server.process.kill()  # first: it replaces dead workers
            for worker in workers:
                _kill(worker)
            server.process.wait(timeout=30)
            server.kill()
            run.faults["all killed"] += 1
            server = started()
            clients.url = server.url
        clients.wait_for(20)
        clients.stop()
        counts = clients.counts
        server.stop()
        server = started("--workers", "1")  # a second worker may answer from before the last rows
        answer = httpx.get(f"{server.url}/models/m?digest=true").json()
        labelled = counts["learn"] + counts["remember"]
        assert answer["samples"] == labelled + counts["revise"] and counts["revise"] > 0
        assert httpx.get(f"{server.url}/models/m/metrics").json()["rows"] == labelled
        assert answer["seq"] == sum(counts.values()) + counts["remember"]
    finally:
        if server.process.poll() is None:
            server.stop()
    replica = loaded(store)
    assert replica.learner.observed == counts["observe"] + counts["remember"]
    assert replica.capture().state_digest() == answer["state_digest"]
    late = assert_columns_follow_from_the_journal(replica, asyncio.run(records_of(store)))
    assert late == counts["remember"] + counts["revise"]


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_history_on_sqlite(tmp_path):
    with recorded(Run("history, 2 workers", "SQLite `normal`", seeds=[SEED])) as run:
        kill_again_and_again(run, f"sqlite:///{tmp_path / 'store.db'}", tmp_path / "log")
    assert run.outcome == "passed"


def test_history_on_redis(tmp_path):
    with (
        redis_or_skip(appendfsync="always") as redis,
        recorded(Run("history, 2 workers", "Redis `always`", seeds=[SEED])) as run,
    ):
        kill_again_and_again(run, redis.url, tmp_path / "log")
    assert run.outcome == "passed"
