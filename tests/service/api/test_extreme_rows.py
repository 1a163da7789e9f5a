"""Models of extreme rows over HTTP: snapshots, restarts, versions and certificates work."""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from starlette.testclient import TestClient

from dualstream.service.api import responses
from dualstream.service.replica.state import ModelState, PositionedState
from dualstream.service.server.app import create_app
from dualstream.service.settings import Settings
from dualstream.solvers import CorruptState
from dualstream.solvers.online import class_model
from tests.service.conftest import assert_problem

EVERY = 5
LIFTED = {"kind": "balanced", "moments": False}
"""A scaling that multiplies a value of a rare column by a power of the number of rows."""
DIM = {"features": {"kind": "indexed", "dim": 3}}
ONE, HUGE = [1.0, 0.0, 0.0], [0.0, 1e100, 0.0]
DUAL = {"algorithm": "dual_ascent", "scaling": LIFTED, "retain": 50, **DIM}


@dataclass
class Case:
    """A specification, and the requests that lead to an extreme state."""

    spec: dict[str, Any]
    requests: list[list[tuple[list[float], Any]]]
    rejected: int = 0
    certificate: str | None = "?reference=true"
    resets: list[int] = field(default_factory=list)


CASES = {
    "a second class after an extreme row": Case(
        DUAL | {"task": "multiclass"},
        [[(ONE, "a")] * 3, [(HUGE, "a")], [(ONE, "b")], [(ONE, "a")] * EVERY],
    ),
    "a rejected row after an extreme row": Case(
        DUAL | {"task": "regression"},
        [
            [(ONE, 1.0)] * 3,
            [(HUGE, 1.0)],
            [([0.0, 0.0, 0.1], 1e100), ([0.0, 0.0, 1e100], 1.0), (ONE, 2.0)],
            [(ONE, 1.0)] * EVERY,
        ],
        rejected=1,
    ),
    "landmarks beyond the limit of a row": Case(
        {"algorithm": "perceptron", "scaling": LIFTED, "map": {"kind": "nystroem", "components": 3}}
        | DIM,
        [[(ONE, 1)] * 3, [(HUGE, 0)], [([0.0, 0.0, -1.0], 0)], [(ONE, 1)] * 2 * EVERY],
        certificate=None,
    ),
    "rows that wait for landmarks": Case(
        {"algorithm": "perceptron", "scaling": LIFTED, "map": {"kind": "nystroem", "components": 9}}
        | DIM,
        [[(ONE, 1)] * 3, [(HUGE, 0)], [(ONE, 1)] * 2 * EVERY],
        certificate=None,
    ),
    "a version and a reference of an extreme row": Case(
        DUAL | {"loss": "hinge"}, [[(ONE, 1)] * 3, [(HUGE, 0)], [(ONE, 1)] * EVERY]
    ),
    "a member whose sum of conjugates overflows": Case(
        {
            "algorithm": "portfolio",
            "task": "regression",
            "members": [
                {"kind": "dual_ascent", "loss": "squared", "scaling": "none", "base": "last"}
                | {"strength": 1.0}
            ],
            **DIM,
        },
        [
            [([1.0, -1.0, 0.0], 1e98, 1e100), ([1e-100, 1.0, 0.0], -1.0, 1e100)],
            [([1e98, 1.0, 0.0], 1e98, 1.0), ([-1.0, 1e98, 0.0], 1e-100, 1e-300)],
            [([1.0, 1.0, 0.0], 1.0, 1.0)] * 2 * EVERY,
        ],
        certificate="?member=dual_ascent-1",
        resets=[1],
    ),
}

Start = Callable[..., Any]


@pytest.fixture
def start(store: str) -> Start:
    """Starts a server on one store; it ends with the block."""

    @contextlib.contextmanager
    def running(**options: Any) -> Iterator[TestClient]:
        settings = Settings(store=store, snapshot_every=EVERY, **options)
        with TestClient(create_app(settings)) as client:
            deadline = time.monotonic() + 60
            while client.get("/readyz").status_code != 200:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield client

    return running


def learn(client: TestClient, requests: list[list[tuple]]) -> int:
    """Send every request; return the number of rejected rows."""
    rejected = 0
    for rows in requests:
        samples = [dict(zip(("x", "y", "weight"), row, strict=False)) for row in rows]
        answer = client.post("/models/m/learn", json={"samples": samples})
        assert answer.status_code == 200, answer.text
        rejected += answer.json()["rejected"]
    return rejected


def digest(client: TestClient) -> str:
    answer = client.get("/models/m?digest=true")
    assert answer.status_code == 200, answer.text
    return answer.json()["state_digest"]


def snapshots_of(client: TestClient) -> list[int]:
    """The positions of the model's snapshots, once none is being written."""
    model = client.app._registry.find("m")
    deadline = time.monotonic() + 60
    while model.snapshots.is_writing:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    where = (model.record.id, model.record.incarnation)
    result = client.portal.call(model.deps.journal.snapshots, *where)
    return sorted(position.seq for position in result)


@pytest.mark.parametrize("name", CASES)
def test_extreme_rows_survive_snapshot_restart_and_version(start, name):
    case = CASES[name]
    with start() as client:
        assert client.put("/models/m", json=case.spec).status_code == 201
        assert learn(client, case.requests) == case.rejected
        assert snapshots_of(client)
        before = digest(client)
        assert client.post("/models/m/versions", json={"name": "v"}).status_code == 201
    with start() as client:
        assert digest(client) == before
        assert learn(client, case.requests[-1:]) == 0
        assert digest(client) != before
        answer = client.post("/models/m/predict?version=v", json={"x": ONE})
        assert answer.status_code == 200, answer.text
        if case.certificate is not None:
            answer = client.get(f"/models/m/certificate{case.certificate}")
            assert answer.status_code == 200, answer.text
        answer = client.post("/models/m/rollback", json={"version": "v"})
        assert answer.status_code == 200, answer.text
        assert digest(client) == before
        if case.resets:
            members = client.get("/models/m/members").json()["members"]
            assert [member["resets"] for member in members] == case.resets


def test_journal_is_kept_while_snapshots_cannot_be_restored(start, monkeypatch, caplog):
    def refuse(self: PositionedState, *_: object, **__: object) -> None:
        raise CorruptState("a number is not finite")

    rows = [[(ONE, 1)] * EVERY] * 4
    with start() as client:
        assert client.put("/models/m", json=DUAL).status_code == 201
        with monkeypatch.context() as patched:
            patched.setattr(PositionedState, "restore", refuse)
            learn(client, rows)
            assert snapshots_of(client) == []
        assert "a number is not finite" in caplog.text
        before = digest(client)
    with start() as client:
        assert client.get("/models/m").json()["seq"] == 4 * EVERY
        assert digest(client) == before
        learn(client, rows)
        assert snapshots_of(client) != []


def test_snapshot_is_read_back_in_a_thread_and_only_before_a_trim(start, monkeypatch):
    threads: list[threading.Thread] = []
    restore = PositionedState.restore

    def noted(self: PositionedState, *args: Any, **more: Any) -> None:
        threads.append(threading.current_thread())
        restore(self, *args, **more)

    monkeypatch.setattr(PositionedState, "restore", noted)
    for keep_records, is_read_back in ((0, True), (1000, False)):
        with start(keep_records=keep_records) as client:
            loop = client.portal.call(threading.current_thread)
            assert client.put("/models/m", json=DUAL).status_code in (200, 201)
            learn(client, [[(ONE, 1)] * EVERY] * 2)
            assert snapshots_of(client)
            assert bool(threads) == is_read_back
            assert loop not in threads
            assert client.delete("/models/m").status_code == 204
        threads.clear()


def test_state_that_cannot_be_read_back_gets_no_version(start, monkeypatch):
    def refuse(self: ModelState, *_: object) -> None:
        raise CorruptState("a number is not finite")

    with start() as client:
        assert client.put("/models/m", json=DUAL).status_code == 201
        learn(client, [[(ONE, 1)] * 3])
        with monkeypatch.context() as patched:
            patched.setattr(ModelState, "restore", refuse)
            answer = client.post("/models/m/versions", json={"name": "v"})
            assert_problem(answer, 503, "unreadable-version")
            assert "a number is not finite" in answer.json()["detail"]
            answer = client.post("/models/m/rollback", json={"seq": 2})
            assert_problem(answer, 503, "unreadable-version")
        assert client.get("/models/m/versions").json()["versions"] == []
        assert client.get("/models/m").json()["seq"] == 3
        assert client.post("/models/m/versions", json={"name": "v"}).status_code == 201


BEYOND = {"algorithm": "sgd", "rho": 0.0, "mu": 1e12, "average": None, "intercept": False, **DIM}


@pytest.mark.parametrize(
    ("fields", "rows"),
    [
        ({"task": "regression"}, [(HUGE, 1e100)]),
        ({"loss": "squared_hinge"}, [([0.0, 1e42, 0.0], 1), ([0.0, 1e99, 0.0], 0)]),
        (
            {"loss": "squared_hinge", "task": "multiclass"},
            [([0.0, 1e42, 0.0], "a"), ([0.0, 1e99, 0.0], "b")],
        ),
    ],
    ids=str,
)
def test_score_that_is_not_finite_is_null_in_single_answers_as_in_batches(model, fields, rows):
    assert model.put("/models/s", json=BEYOND | fields).status_code == 201
    samples = [{"x": x, "y": y} for x, y in rows]
    answer = model.post("/models/s/learn", json={"samples": samples}).json()
    assert answer["rejected"] == 0
    xs = [HUGE, ONE]
    many = model.post("/models/s/predict", json={"x": xs}).json()
    assert many["scores"][0] is None and many["scores"][1] is not None
    for row, x in enumerate(xs):
        one = model.post("/models/s/predict", json={"x": x}).json()
        result = one["score"], one["label"], one["probability"]
        chances = many["probabilities"] or [None, None]
        assert result == (many["scores"][row], many["labels"][row], chances[row])
        assert (one["score"] is None) == (row == 0)
        if one["score"] is None:
            assert one["label"] is None and one["probability"] is None


def test_probability_of_a_score_that_is_not_finite_is_null():
    """Losses with probabilities have bounded steps, so no request leads to such a score."""
    scores, chances = [1.0, None, 2.0, None], [0.7, 0.5, math.nan, 1.0]
    assert responses._finite_with(scores, chances) == [0.7, None, None, None]


def test_certificate_with_a_null_says_why(model):
    spec = {"task": "regression", "loss": "squared", "intercept": False, **DIM}
    assert model.put("/models/c", json=spec).status_code == 201
    learned = [{"x": ONE, "y": 1.0}, {"x": HUGE, "y": 1.0}]
    assert model.post("/models/c/learn", json={"samples": learned}).json()["rejected"] == 0
    for query in ("", "?reference=true"):
        result = model.get(f"/models/c/certificate{query}").json()
        assert "reason" not in result and result["primal"] > 0.0
    row = {"x": [0.0, 1e-6, 0.0], "y": 1e100}
    assert model.post("/models/c/learn", json=row).json()["learned"] == 1
    result = model.get("/models/c/certificate").json()
    assert result["primal"] is None
    assert "beyond the range of a float" in result["reason"]
    answer = model.get("/models/c/certificate?reference=true")
    if answer.status_code == 200:
        assert "reason" in answer.json()
    else:
        assert "range of float64" in assert_problem(answer, 404, "no-reference")["detail"]


def test_row_beyond_the_most_classes_is_refused_with_the_number_and_its_label(model, monkeypatch):
    for module in (class_model, responses):
        monkeypatch.setattr(module, "MAX_CLASSES", 3)
    spec = {"algorithm": "perceptron", "task": "multiclass", **DIM}
    assert model.put("/models/k", json=spec).status_code == 201
    labels = ["a", "b", "c", "c1000", "a", 7, True]
    samples = [{"x": ONE, "y": label} for label in labels]
    headers = {"idempotency-key": "once"}
    expected = [
        (index, f"the model has 3 classes, the most it may have; {label} is not one of them")
        for index, label in ((3, "'c1000'"), (5, "7"), (6, "true"))
    ]
    for _ in range(2):
        answer = model.post("/models/k/learn", json={"samples": samples}, headers=headers).json()
        assert (answer["learned"], answer["rejected"]) == (4, 3)
        results = [(error["index"], error["reason"]) for error in answer["errors"]]
        assert results == expected
    answer = model.post("/models/k/learn", json=samples[3]).json()
    assert answer["errors"][0]["reason"] == expected[0][1]
    late = [{"x": ONE, "id": f"s{index}"} for index in range(7)]
    assert model.post("/models/k/predict?remember=true", json=late).status_code == 200
    late = [{"id": f"s{index}", "y": label} for index, label in enumerate(labels)]
    for _ in range(2):
        answer = model.post(
            "/models/k/labels", json={"labels": late}, headers={"idempotency-key": "late"}
        )
        results = [(error["index"], error["reason"]) for error in answer.json()["errors"]]
        assert results == expected, answer.text


@pytest.mark.parametrize("spec", [{"members": "fast", "task": "regression"}, {"algorithm": "net"}])
def test_broken_first_rows_do_not_count_in_the_metrics(client, spec):
    """Neither in those of the baselines; rows are counted from the next one on."""
    rows = [{"x": [0.01 * at], "y": at % 2, "weight": int(at % 9 != 5)} for at in range(60)]
    rows[3] |= {"y": 1e100} if "task" in spec else {"x": [1e100]}
    spec = spec | {"features": {"kind": "indexed", "dim": 1}}
    metrics, digests = [], set()
    for name, edges in {"list": [0, 60], "parts": [0, 20, 50, 60], "rows": range(61)}.items():
        assert client.put(f"/models/{name}", json=spec).status_code == 201
        for first, last in pairwise(edges):
            answer = client.post(f"/models/{name}/learn", json={"samples": rows[first:last]})
            assert answer.json()["learned"] == last - first
        digests.add(client.get(f"/models/{name}?digest=true").json()["state_digest"])
        metrics.append(client.get(f"/models/{name}/metrics").json())
    assert len(digests) == 1
    for view in ("since_start", "rolling"):
        assert metrics[0][view]["loss"] < 5.0
        errors = [*metrics[0][view]["baselines"].values(), metrics[0][view]]
        assert all(
            number < 5.0 for one in errors for number in one.values() if type(number) is float
        )
    assert metrics[0]["rolling"]["rows"] == 24  # row 36 is the 32nd with a weight
