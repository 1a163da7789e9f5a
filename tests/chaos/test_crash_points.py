"""Crash at each step between a request and its answer: the client's retry succeeds.

There are two workers, so that the other one can answer; a dead worker is replaced. At the end the
journal, a replay, a snapshot and both workers agree to the bit, and every answer matches the
journal.
"""

import asyncio
import os
import time
from itertools import product
from pathlib import Path
from random import Random
from typing import IO, Any

import httpx

from dualstream.service.cli.demo.server_process import ServerProcess
from tests.chaos import crash_points
from tests.chaos.check_models import examine
from tests.chaos.clients import Told
from tests.chaos.pasts import SPEC, assert_columns_follow_from_the_journal, records_of
from tests.chaos.report import Run, recorded
from tests.chaos.samples import DUAL, SPECS
from tests.history import Acknowledged
from tests.service.support import loaded

FLAGS = ("--workers", "2", "--snapshot-every", "3", "--keep-records", "100000000")
WHAT = "a crash at each step between request and answer"
LATE = "a crash at each step of late labels and a history"
WAYS = ("observe", "predict?remember=true", "labels?revise=true", "labels?revise=true again")
CRASHES = 4 * int(os.environ.get("DUALSTREAM_CHAOS_ROUNDS", "1"))


class Client:
    """Sends each request until it is answered."""

    def __init__(self, url: str, mark: Path) -> None:
        self._mark = mark
        # A connection for each request: any worker may accept it.
        fresh = httpx.Limits(max_keepalive_connections=0)
        self.http = httpx.Client(base_url=url, timeout=10, limits=fresh)
        self.got = Told()
        self.seq = 0

    def learn(self, step: str) -> None:
        """Requests while a worker dies at a step: each is learned once and answered correctly."""
        deadline = time.monotonic() + 60
        got = []
        self.arm(step)
        # A snapshot of earlier rows may strike before the first request.
        while self._mark.exists() or not got:
            assert time.monotonic() < deadline, f"no process reached: {step}"
            got.append(self._ask_once())
            # A snapshot that is due while another one is written is skipped: wait for the next.
            self._wait(1.0)
        for path, body, headers, answer in got:
            assert self.send("POST", path, body, headers) == answer | {"duplicate": True}

    def _ask_once(self) -> tuple[str, Any, dict[str, str], dict[str, Any]]:
        """A request of three rows, and its answer."""
        key = f"k{self.seq // 3}"
        samples = [
            {"x": {str(1 + self.seq // 3): 1, str(50 + at): 2}, "y": at % 2} for at in range(3)
        ]
        samples[1] |= {"id": f"id {key}"}
        request = f"/models/{DUAL}/learn", {"samples": samples}, {"idempotency-key": key}
        answer = self.send("POST", *request)
        assert (answer["seq"], answer["count"], answer["learned"]) == (self.seq + 3, 3, 3)
        self.seq += 3
        self.got.sent[key] = 3
        self.got.acknowledged.append(Acknowledged(key, answer["seq"], 3))
        self.got.answers.append(answer)
        return *request, answer

    def arm(self, step: str) -> None:
        partial = self._mark.with_suffix(".partial")
        partial.write_text(step)
        partial.rename(self._mark)

    def wait_until_struck(self, step: str) -> None:
        self._wait(60)
        assert not self._mark.exists(), f"no process reached: {step}"

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._mark.exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    def send(
        self, method: str, path: str, body: Any, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while True:
            try:
                answer = self.http.request(method, path, json=body, headers=headers)
            except httpx.TransportError:
                pass
            else:
                if answer.is_success:
                    got: dict[str, Any] = answer.json()
                    return got
                assert answer.status_code == 503, answer.text
            assert time.monotonic() < deadline
            time.sleep(0.02)


def crashing_server(store: str, mark: Path, log: IO[bytes]) -> ServerProcess:
    """A server whose workers die at the step that the file `mark` names."""
    env = {"DUALSTREAM_CRASH_MARK": str(mark)}
    return ServerProcess(store, FLAGS, env=env, stderr=log.fileno(), module="tests.chaos.server")


def test_a_crash_at_each_step(store, tmp_path):
    mine = crash_points.SQLITE if store.startswith("sqlite") else crash_points.REDIS
    steps = (*crash_points.LEARNING, *crash_points.SNAPSHOTS, *mine)
    mark = tmp_path / "crash"
    run = Run(WHAT, "SQLite" if store.startswith("sqlite") else "Redis")
    with (
        (tmp_path / "log").open("wb") as log,
        recorded(run),
        crashing_server(store, mark, log) as server,
    ):
        client = Client(server.url, mark)
        if not store.startswith("sqlite"):
            # Created and not yet listed: the repeated request lists it.
            client.arm(*crash_points.CREATING)
        client.send("PUT", f"/models/{DUAL}", SPECS[DUAL])
        client.wait_until_struck("the model is made")
        listed = client.send("GET", "/models", None)["models"]  # a worker that starts answers 503
        assert [model["id"] for model in listed] == [DUAL]
        for step in steps:
            client.learn(step)
            run.faults["worker killed"] += 1
        asyncio.run(examine(run, store, {DUAL: client.got}, server))
    assert run.outcome == "passed" and run.acknowledged == client.seq >= 3 * len(steps)


class Events:
    """Two events of a card: one is observed; one is predicted, labelled and labelled again."""

    def __init__(self, client: Client) -> None:
        self._client, self.count = client, 0

    def crash(self, way: str, step: str) -> None:
        """Send the two events, while a worker dies at a step of one of their requests."""
        at, number = 1.75e9 + 60 * self.count, self.count
        self.count += 1
        event = {"at": at, "card": number % 3, "amount": number % 7, "site": "ab"[number % 2]}
        for one in WAYS:
            body = event | {"tx": f"{one} {number}"}
            if one.startswith("labels"):
                body = {"id": f"{WAYS[1]} {number}", "y": (number + ("again" in one)) % 2}
            if one == way:
                self._client.arm(step)
            self._client.send("POST", f"/models/m/{one.removesuffix(' again')}", body)
        self._client.wait_until_struck(f"{step}, {way}")


def test_a_crash_at_each_step_of_late_labels(store, tmp_path):
    mine = crash_points.SQLITE if store.startswith("sqlite") else crash_points.REDIS
    steps = [step for step in crash_points.LEARNING if step not in crash_points.OF_LEARN]
    pairs = list(product(WAYS, (*steps, *mine)))
    chosen = Random(1).sample(pairs, min(CRASHES, len(pairs)))
    run = Run(LATE, "SQLite" if store.startswith("sqlite") else "Redis")
    with recorded(run):
        mark = tmp_path / "crash"
        with (tmp_path / "log").open("wb") as log, crashing_server(store, mark, log) as server:
            client = Client(server.url, mark)
            client.send("PUT", "/models/m", SPEC)
            events = Events(client)
            for way, step in chosen:
                events.crash(way, step)
                run.faults["worker killed"] += 1
        replica = loaded(store)
        assert (replica.seq, replica.progress.rows) == (4 * events.count, events.count)
        assert replica.learner.samples == replica.learner.observed == 2 * events.count
        late = assert_columns_follow_from_the_journal(replica, asyncio.run(records_of(store)))
        assert late == 2 * events.count
    assert run.outcome == "passed"
