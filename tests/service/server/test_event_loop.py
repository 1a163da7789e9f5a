"""The event loop answers while one request, prediction or load takes seconds.

`pytest -n 0 --log-cli-level=INFO` shows the longest time of an answer in each case.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from dualstream.service.cli.demo.server_process import ServerProcess

log = logging.getLogger(__name__)

LIMIT_S = 0.25
"""Longest time of an answer, beyond that of an idle server at the same time."""
ATTEMPTS = 8
"""A busy machine delays some of them. A loop that is blocked by the work is so in each."""
FLAGS = ["--snapshot-every", "1000000"]


def hashed(bits: int) -> dict[str, Any]:
    return {"features": {"kind": "hashed", "bits": bits}}


def class_of(row: int) -> str:
    return f"c{row}"


def side_of(row: int) -> int:
    return row % 2


class Case(NamedTuple):
    """A request that takes a second or more."""

    spec: dict[str, Any]
    rows: int
    label: Callable[[int], Any]
    kind: str = "json"
    features: int = 4
    predicts: int = 0
    """Rows of the prediction that is measured instead of learning; the rows are learned before."""


FOURIER = {
    "map": {"kind": "fourier", "components": 16384},
    "features": {"kind": "indexed", "dim": 4},
}
CASES = {
    "a portfolio with a new class in each row": Case({"task": "multiclass"}, 150, class_of),
    "a perceptron with a new class in each line": Case(
        {"algorithm": "perceptron", "task": "multiclass", **hashed(18)}, 200, class_of, "lines"
    ),
    "entropy, a pass over all weights": Case(
        {"algorithm": "dual_ascent", "regularizer": "entropy", **hashed(22)}, 12, side_of
    ),
    "one row, with entropy": Case(
        {"algorithm": "dual_ascent", "regularizer": "entropy", **hashed(24)}, 1, side_of
    ),
    "replay of a number of steps": Case(
        {"algorithm": "dual_ascent", "replay": {"steps": 500_000}, **hashed(18)}, 8, side_of
    ),
    "replay until a gap": Case(
        {
            "algorithm": "dual_ascent",
            "replay": {"until_gap": 1e-9, "max_steps": 500, "every": 1},
            **hashed(18),
        },
        8,
        side_of,
    ),
    "an expensive member": Case(
        {"members": [{"algorithm": "dual_ascent", "replay": {"steps": 500_000}}]}, 8, side_of
    ),
    "landmarks": Case(
        {
            "algorithm": "dual_ascent",
            "map": {"kind": "nystroem", "components": 900, "gamma": 1e4},
            "features": {"kind": "indexed", "dim": 4},
        },
        901,
        side_of,
    ),
    "a prediction": Case({"algorithm": "dual_ascent", **FOURIER}, 5, side_of, predicts=1500),
    "a prediction of many classes": Case({"task": "multiclass"}, 80, class_of, predicts=4000),
}


def body_of(case: Case, rows: int) -> bytes:
    """Rows with features by index or by name."""
    is_indexed = case.spec.get("features", {}).get("kind") == "indexed"
    names = [str(index + 1) if is_indexed else f"f{index}" for index in range(case.features)]
    samples = [
        {
            "x": {name: 1.0 + (8 * row + at) % 1001 / 100 for at, name in enumerate(names)},
            "y": case.label(row),
        }
        for row in range(rows)
    ]
    if case.kind == "lines":
        return "\n".join(map(json.dumps, samples)).encode()
    return json.dumps({"samples": samples}).encode()


class Probe:
    """Asks for /livez every 20 ms in a thread; `longest` is the longest time of an answer."""

    def __init__(self, url: str) -> None:
        self._ends = threading.Event()
        self.longest, self._error = 0.0, ""
        # Made here: that takes as long as many answers.
        self._client = httpx.Client(base_url=url, timeout=60)
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            is_over = False
            while not is_over:  # once at least, if the thread begins late
                began = time.perf_counter()
                self._client.get("/livez").raise_for_status()
                self.longest = max(self.longest, time.perf_counter() - began)
                is_over = self._ends.wait(0.02)
        except httpx.HTTPError as error:
            self._error = repr(error)

    def __enter__(self) -> "Probe":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self._client.close()
        assert not self._error and self.longest > 0.0, self._error


def blocks_no_other(name: str, url: str, idle_url: str, work: Callable[[], object]) -> bool:
    """Does the server at `url` answer others during this work as fast as the idle server does?"""
    with Probe(idle_url) as idle, Probe(url) as probe:
        work()
        time.sleep(0.1)
    load = os.getloadavg()[0]
    waits = f"/livez took at most {probe.longest:.3f} s, of an idle server {idle.longest:.3f} s"
    log.info("%s: %s, load %.1f", name, waits, load)
    return probe.longest <= LIMIT_S + idle.longest


def send(client: httpx.Client, model: str, action: str, case: Case, body: bytes) -> None:
    kind = {"json": "application/json", "lines": "application/x-ndjson"}[case.kind]
    headers = {"content-type": kind}
    answer = client.post(f"/models/{model}/{action}", content=body, headers=headers)
    # On a slow machine the request may take longer than the server waits.
    assert answer.status_code == 200 or "outcome-unknown" in answer.text, answer.text


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    store = f"sqlite:///{tmp_path_factory.mktemp('loop') / 'loop.db'}"
    with ServerProcess(store, FLAGS) as server:
        with httpx.Client(base_url=server.url, timeout=120) as client:
            yield client


@pytest.fixture(scope="module")
def idle_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a server that does nothing: what it takes to answer, the machine adds."""
    store = f"sqlite:///{tmp_path_factory.mktemp('idle') / 'idle.db'}"
    with ServerProcess(store, FLAGS) as server:
        yield server.url


@pytest.mark.parametrize("name", CASES)
def test_others_are_answered_while_one_request_takes_long(client, idle_url, name):
    case = CASES[name]
    action, rows = ("predict", case.predicts) if case.predicts else ("learn", case.rows)
    first, body = body_of(case, case.rows), body_of(case, rows)
    for _ in range(ATTEMPTS):
        assert client.put("/models/m", json=case.spec).status_code == 201
        if case.predicts:
            send(client, "m", "learn", case, first)
        work = partial(send, client, "m", action, case, body)
        is_good = blocks_no_other(name, str(client.base_url), idle_url, work)
        assert client.delete("/models/m").status_code == 204
        if is_good:
            return
    raise AssertionError("the event loop was blocked")


# Names, specifications and rows of models that are viewed. Each is learned once.
MODELS: dict[str, tuple[dict[str, Any], Callable[[], list[dict[str, Any]]]]] = {
    "classes": (
        {"task": "multiclass"},
        lambda: [{"x": {"a": 1.0, f"f{row % 9}": 2.0}, "y": f"c{row}"} for row in range(120)],
    ),
    "retained": (
        {"task": "multiclass", "algorithm": "dual_ascent", **hashed(14)},
        lambda: [
            {"x": {"a": 1.0, f"f{row % 9}": 2.0}, "y": f"c{row % 100}", "id": f"i{row}"}
            for row in range(200)
        ],
    ),
    "sparse": (
        {"algorithm": "rda", **hashed(20)},
        lambda: [
            {"x": {f"f{2000 * row + at}": 1.0 for at in range(2000)}, "y": side_of(row)}
            for row in range(150)
        ],
    ),
    "mapped": (
        {
            "algorithm": "dual_ascent",
            "map": {"kind": "fourier", "components": 16384},
            "features": {"kind": "indexed", "dim": 256},
        },
        lambda: [{"x": {"1": 1.0 + row}, "y": side_of(row)} for row in range(4)],
    ),
}
VIEWS: dict[str, tuple[str, str, str, Any]] = {
    "weights": ("classes", "GET", "/weights?top=20", None),
    "a digest": ("classes", "GET", "?digest=true", None),
    "a version": ("classes", "POST", "/versions", {"name": "v"}),
    "a rollback to a version": ("classes", "POST", "/rollback", {"version": "first"}),
    "a rollback to a log position": ("classes", "POST", "/rollback", {"seq": 110}),
    "unlearning": ("retained", "DELETE", "/samples/i{attempt}", None),
    "a refit": ("retained", "POST", "/refit", {"max_epochs": 3}),
    "the support of many features": ("sparse", "GET", "/support", None),
    "an export of many features": ("sparse", "GET", "/export?format=json", None),
    "a rollback with a map to draw": ("mapped", "POST", "/rollback", {"seq": 2}),
}


@pytest.fixture(scope="module")
def learned(client: httpx.Client) -> Callable[[str], None]:
    """Function that creates one of MODELS, unless it exists."""
    made: set[str] = set()

    def make(name: str) -> None:
        if name not in made:
            spec, rows = MODELS[name]
            assert client.put(f"/models/{name}", json=spec).status_code == 201
            samples = rows()
            for first in range(0, len(samples), 40):
                body = {"samples": samples[first : first + 40]}
                client.post(f"/models/{name}/learn", json=body).raise_for_status()
            if name == "classes":
                client.post("/models/classes/versions", json={"name": "first"}).raise_for_status()
            made.add(name)

    return make


@pytest.mark.parametrize("name", VIEWS)
def test_others_are_answered_while_a_state_is_read_or_replaced(client, idle_url, learned, name):
    model, method, path, body = VIEWS[name]
    learned(model)

    def ask(attempt: int) -> None:
        url = f"/models/{model}{path.format(attempt=attempt)}"
        answer = client.request(method, url, json=body)
        assert answer.status_code < 300, answer.text
        jobs = f"/models/{model}/refits"
        while name == "a refit" and client.get(jobs).json()["refits"][0]["status"] != "done":
            time.sleep(0.1)

    for attempt in range(ATTEMPTS):
        if blocks_no_other(name, str(client.base_url), idle_url, partial(ask, attempt)):
            return
    raise AssertionError("the event loop was blocked")


@pytest.mark.parametrize("name", list(CASES)[:2])
def test_others_are_answered_while_a_model_is_loaded(tmp_path: Path, idle_url, name):
    """The whole journal is learned again, because there is no snapshot."""
    case, store = CASES[name], f"sqlite:///{tmp_path / 'load.db'}"
    with ServerProcess(store, FLAGS) as server:
        with httpx.Client(base_url=server.url, timeout=120) as client:
            for model, spec in {"first": {}, "m": case.spec}.items():
                assert client.put(f"/models/{model}", json=spec).status_code == 201
            send(client, "m", "learn", case, body_of(case, case.rows))
        server.kill()
    one = body_of(case, 1)
    for _ in range(ATTEMPTS):
        # `first` takes the only place at the start, so the request for `m` loads it.
        with ServerProcess(store, [*FLAGS, "--models-bytes", "1"]) as server:
            with httpx.Client(base_url=server.url, timeout=120) as client:
                work = partial(send, client, "m", "predict", case, one)
                is_good = blocks_no_other(name, server.url, idle_url, work)
            server.kill()
        if is_good:
            return
    raise AssertionError("the event loop was blocked")


def test_others_are_answered_while_the_server_becomes_ready(tmp_path: Path, idle_url):
    """Nothing walks through all objects after the server listens."""
    store = f"sqlite:///{tmp_path / 'start.db'}"
    for _ in range(ATTEMPTS):
        with ServerProcess(store, FLAGS, wait=False) as server:
            server.wait_until("Dualstream listens")
            work = partial(server.wait_until, "ready")
            if blocks_no_other("a start", server.url, idle_url, work):
                return
    raise AssertionError("the event loop was blocked")
