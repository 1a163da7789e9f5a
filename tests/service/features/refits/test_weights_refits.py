"""Refits of models that retain no rows: on the rows of the journal, the same bits for all."""

import asyncio
import sqlite3
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dualstream.service.features import ALL
from dualstream.service.features.refits import job as refits
from dualstream.service.features.refits.window import Window, last_rows
from dualstream.service.journal.protocol import Entry, Trimmed
from dualstream.service.journal.record import Control
from dualstream.service.replica.commit import Committer
from dualstream.service.replica.controls import apply_to, read_control
from dualstream.service.replica.groups import Group
from dualstream.service.replica.requests import ControlRequest, Request
from dualstream.solvers import Batch
from tests.service.conftest import assert_problem
from tests.service.features.refits.support import (
    DIM,
    SOLVING_S,
    begin,
    controls,
    finished,
    is_computing,
    learn,
    samples,
    until,
)
from tests.service.support import bits, loaded, lose_last_entry, replica_of, until_answered

FEATURES = {"kind": "indexed", "dim": DIM}
SPEC: dict[str, Any] = {"algorithm": "asset", "lambda": 0.01, "features": FEATURES}


@pytest.fixture(autouse=True)
def beats_fast(monkeypatch):
    monkeypatch.setattr(refits, "HEARTBEAT_S", 0.02)


def rows_read(monkeypatch) -> list[list[float]]:
    """The first features of the rows of each refit from now on."""
    solve, read = refits._solve, []

    def look(problems: Any, rows: Any, *rest: Any) -> Any:
        read.append(rows.values[rows.indptr[:-1]].tolist())
        return solve(problems, rows, *rest)

    monkeypatch.setattr(refits, "_solve", look)
    return read


def test_weights_solved_for_on_the_journals_rows_enter_every_replica(serve, store, monkeypatch):
    client, other = serve(store=store), serve(store=store)
    assert client.put("/models/m", json=SPEC).status_code == 201
    first = [row[0] for row in samples(0, 400)["x"]]
    for n in range(0, 400, 50):
        learn(client, n, n + 50)
    read = rows_read(monkeypatch)
    weights = client.get("/models/m/weights").json()["weights"]
    got = finished(client, begin(client, tol=1e-2, rows=300)["job"])
    assert (got["status"], got["method"], got["rows"], got["seq"]) == (
        "done", "mcpa", 300, 400,
    )  # fmt: skip
    assert got["relative_gap"] <= 1e-2 < got["relative_gap_before"] and got["converged"]
    assert got["retained"] is None and got["entered_seq"] == 401
    assert read == [first[100:]]
    assert other.get("/models/m/predict?x=1:1&min_seq=401").json()["seq"] == 401
    assert bits(replica_of(other)) == bits(replica_of(client)) == bits(loaded(store))
    # Taken back, and what was learned since left behind: it is no part of the next window.
    learn(client, 400, 420)
    assert client.post("/models/m/rollback", json={"seq": 400}).status_code == 200
    assert client.get("/models/m/weights").json()["weights"] == weights
    learn(client, 420, 440)
    got = finished(client, begin(client, method="dcd", rows=200)["job"])
    assert got["status"] == "done" and got["method"] == "dcd"
    # Of the last 200 records: 20 rows, the rollback, the 20 before it, the refit, and 158 rows.
    assert read[1] == first[242:400] + [row[0] for row in samples(420, 440)["x"]]
    # And forward again, to the state that had the first refit and the rows after it.
    assert client.post("/models/m/rollback", json={"seq": 421}).status_code == 200
    finished(client, begin(client, rows=90)["job"])
    after = [row[0] for row in samples(400, 420)["x"]]
    assert read[2] == first[354:400] + after
    seq = client.get("/models/m").json()["seq"]
    other.get(f"/models/m/predict?x=1:1&min_seq={seq}")
    assert bits(replica_of(other)) == bits(replica_of(client)) == bits(loaded(store))


def test_what_came_in_between_decides_whether_it_enters(serve, store, monkeypatch):
    client, other = serve(store=store), serve(store=store)
    client.put("/models/m", json=SPEC)
    learn(client, 0, 200)
    solve = refits._solve

    def after(change: Any) -> dict[str, Any]:
        monkeypatch.setattr(refits, "_solve", lambda *args: (solve(*args), change())[0])
        got = finished(client, begin(client, rows=100)["job"])
        monkeypatch.setattr(refits, "_solve", solve)
        return got

    # Rows: their part of the weights goes, and they stay counted.
    got = after(lambda: learn(other, 200, 250))
    assert (got["status"], got["seq"], got["entered_seq"]) == ("done", 200, 251)
    assert replica_of(client).learner.samples == 250
    # So many that it is of another time; and whatever is no row.
    got = after(lambda: learn(other, 250, 400))
    assert got["status"] == "refused" and "150 rows came since" in got["reason"]
    got = after(lambda: other.post("/models/m/rollback", json={"seq": 200}))
    assert got["status"] == "refused" and "by hand" in got["reason"]
    assert replica_of(client).learner.samples == 200
    other.get(f"/models/m/predict?x=1:1&min_seq={got['entered_seq']}")
    assert bits(replica_of(other)) == bits(replica_of(client)) == bits(loaded(store))
    # Cancelled while it is computed, by whom it is not computed.
    monkeypatch.setattr(
        refits, "_solve", lambda _, rows, job, ending: ending.wait(SOLVING_S) and None
    )
    job = begin(client)["job"]
    until(client, job, "running")
    other.delete(f"/models/m/refits/{job}")
    assert finished(other, job)["status"] == "cancelled"
    got = assert_problem(
        client.post("/models/m/refit", json={"method": "newton_l1"}), 422, "invalid-refit"
    )
    assert "newton_l1 supports the losses" in got["detail"]


def test_what_the_store_loses_meanwhile_does_not_enter(serve, no_follower, tmp_path, monkeypatch):
    path = tmp_path / "lossy.db"
    client, other = (serve(store=f"sqlite:///{path}") for _ in range(2))
    client.put("/models/m", json=SPEC)
    for first in range(0, 200, 50):
        learn(client, first, first + 50)
    solve = refits._solve

    def shown_after(change: Any) -> dict[str, Any]:
        def slowly(*args: Any) -> Any:
            result = solve(*args)
            change()
            return result

        monkeypatch.setattr(refits, "_solve", slowly)
        return finished(client, begin(client, rows=100)["job"])

    def lose() -> None:
        lose_last_entry(sqlite3.connect(path))

    def lose_and_learn() -> None:
        lose()
        until_answered(lambda: client.post("/models/m/learn", json=samples(300, 360)))

    for change, seq in ((lose, 200), (lose_and_learn, 150)):
        got = shown_after(change)
        assert got["status"] == "lost", got
        assert f"lost records up to seq {seq}" in got["reason"]
        assert got["entered_seq"] is None
    # And where it is on its way by then.
    monkeypatch.setattr(refits, "_solve", solve)
    send, lost = Committer._send, []

    def lose_first(self: Committer, group: Group) -> Any:
        if isinstance(group.requests[0], ControlRequest) and not lost:
            lost.append(group)
            lose()
        return send(self, group)

    monkeypatch.setattr(Committer, "_send", lose_first)
    learn(client, 400, 460)
    got = finished(client, begin(client, rows=100)["job"])
    assert got["status"] == "lost" and lost, got
    assert not controls(f"sqlite:///{path}")
    other.get("/models/m/predict?x=1:1&min_seq=160")
    assert bits(replica_of(other)) == bits(replica_of(client)) == bits(loaded(f"sqlite:///{path}"))


def test_weights_of_records_that_a_replica_never_had_are_refused(serve, tmp_path):
    """Another worker may append them that has not heard of the loss yet."""
    stores = [f"sqlite:///{tmp_path / name}" for name in ("whole.db", "cut.db")]
    for store, last in zip(stores, (50, 30), strict=True):
        client = serve(store=store)
        client.put("/models/m", json=SPEC)
        learn(client, 0, last)
        if last == 50:
            assert finished(client, begin(client, rows=40)["job"])["status"] == "done"
    [control] = controls(stores[0])
    subject = loaded(stores[1])
    before = bits(subject)
    outcome = apply_to(subject, *read_control(subject, ALL.kinds, control), control.arrays)
    assert outcome.refusal is not None and "has lost records up to seq 50" in outcome.refusal
    assert bits(subject) == before


def test_by_itself_and_by_one_of_two(serve, store):
    workers = [serve(store=store), serve(store=store)]
    refit = {"every": 100, "tol": 1e-2, "rows": 80}
    spec = {"algorithm": "sgd", "features": FEATURES, "refit": refit}
    workers[0].put("/models/m", json=spec)
    assert workers[0].get("/models/m").json()["spec"]["refit"]["method"] == "sdca"
    for n in range(0, 200, 50):
        answer = learn(workers[n // 50 % 2], n, n + 50)
        for worker in workers:
            worker.get(f"/models/m/predict?x=1:1&min_seq={answer['seq']}")
        while any(map(is_computing, workers)):
            time.sleep(0.002)
    for worker in workers:
        worker.get("/models/m/predict?x=1:1&min_seq=202")
    jobs = workers[1].get("/models/m/refits").json()["refits"]
    assert [(job["due"], job["status"], job["rows"]) for job in jobs] == [
        (200, "done", 80), (100, "done", 80),
    ]  # fmt: skip
    assert [control.fields["job"] for control in controls(store)] == [
        job["job"] for job in reversed(jobs)
    ]
    assert bits(replica_of(workers[0])) == bits(replica_of(workers[1])) == bits(loaded(store))


def test_rows_that_are_trimmed_as_they_are_read_leave_no_gap():
    entries = [
        Entry(
            seq,
            seq,
            b"",
            "",
            0,
            Request.of(Batch.from_dense([[seq]], [1.0]), None, None).parts[0].body,
        )
        for seq in range(1, 7)
    ]

    class Trimming:
        """A journal that lets go of its first half once two of it are read."""

        async def read(self, model: str, incarnation: str, after: int) -> list[Entry]:
            if after == 2:
                raise Trimmed(4)
            return entries[after : after + 2]

    async def run(work: Any, *args: Any) -> Any:
        return work(*args)

    replica = SimpleNamespace(id="m", incarnation="", dim=1)
    reading = last_rows(Trimming(), replica, 6, 6, run, lambda: False)  # type: ignore[arg-type]
    result = asyncio.run(reading)
    assert result is not None and result.values.tolist() == [4.0, 5.0, 6.0]


def test_which_records_led_to_a_state():
    window = Window(1, 100)
    assert window._spans() == [(1, 100)]
    window._rollbacks = [(20, 10), (50, 30), (80, 15)]
    # 81 .. 100 on 1 .. 15: the other rollbacks are what was left behind.
    assert window._spans() == [(1, 15), (81, 100)]
    window._rollbacks[-1] = (80, 60)
    assert window._spans() == [(1, 10), (21, 30), (51, 60), (81, 100)]


def test_rows_around_another_change_by_hand_are_left_out():
    """As around a pause: which of them were learned the rows themselves do not tell."""
    row = Batch.from_dense([1.0], [1.0])
    window = Window(1, 100)
    window._runs.append((5, row, 20))
    window._add_control(6, Control("refit", {}, {}))
    result = window.batch()
    assert result is not None and len(result) == 1
    window._add_control(7, Control("resume", {}, {}))
    window._runs.append((8, row, 20))
    result = window.batch()
    assert result is not None and len(result) == 1


def test_a_guard_takes_the_solution_for_good(serve, store):
    """Weights that stand far from those before are no reason to go back."""
    client = serve(store=store)
    guard = {"mode": "pause", "every": 20, "after": 40, "loss": None, "patience": 1}
    spec = {"algorithm": "sgd", "mu": 1e-4, "features": FEATURES, "guard": guard}
    answer = client.put("/models/m", json=spec)
    assert answer.status_code == 201, answer.text
    learn(client, 0, 200)
    norm = np.linalg.norm(replica_of(client).learner.weights)
    assert client.get("/models/m").json().get("paused") is None
    assert finished(client, begin(client)["job"])["status"] == "done"
    assert np.linalg.norm(replica_of(client).learner.weights) > 50 * norm
    learn(client, 200, 260)
    assert client.get("/models/m").json().get("paused") is None
    assert bits(replica_of(client)) == bits(loaded(store))
