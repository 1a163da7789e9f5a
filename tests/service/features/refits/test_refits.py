"""Refits: computed by one, entered as numbers, the same bits for all, whatever comes in between."""

import asyncio
import json
import os
import subprocess
import time
from typing import Any

import httpx
import numpy as np
import pytest

from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.features import ALL
from dualstream.service.features.refits import job as refits, table as refit_board
from dualstream.service.features.refits.job import Refits
from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import AppendRequest, CursorMove
from dualstream.service.journal.record import Control
from dualstream.service.models.deps import NICENESS, SolverThread
from dualstream.service.replay.replay import replay
from dualstream.service.replica.controls import apply_to, read_control
from dualstream.solvers.offline import semiparametric
from dualstream.solvers.refit import weights_problem, window_problem
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
from tests.service.journal.faulty import Fault, FaultyJournal
from tests.service.support import bits, loaded, replica_of

SPEC: dict[str, Any] = {
    "algorithm": "dual_ascent",
    "loss": "hinge",
    "rho": 0.01,
    "window": {"kind": "sliding", "length": 200},
    "features": {"kind": "indexed", "dim": DIM},
}
# Of this one no machine comes to an end.
HARD = SPEC | {"loss": "smooth_hinge", "rho": 1e-9}
NEVER = {"tol": 1e-12, "max_epochs": 1_000_000}


@pytest.fixture(autouse=True)
def beats_fast(monkeypatch):
    monkeypatch.setattr(refits, "HEARTBEAT_S", 0.02)


def test_a_refit_is_the_same_for_all_and_can_be_taken_back(serve, store):
    client, other = serve(store=store), serve(store=store)
    assert client.put("/models/m", json=SPEC).status_code == 201
    learn(client, 0, 250)
    before = client.get("/models/m/certificate").json()
    weights = client.get("/models/m/weights").json()["weights"]
    job = begin(client, tol=1e-3)["job"]
    got = finished(client, job)
    assert (got["status"], got["seq"], got["rows"], got["retained"]) == ("done", 250, 200, 200)
    assert got["converged"] and got["entered_seq"] == 251 and got["epochs"] > 1
    assert got["relative_gap"] <= 1e-3 < got["relative_gap_before"]
    after = client.get("/models/m/certificate").json()
    assert after["seq"] == 251 and after["relative_gap"] <= 1e-3
    assert after["dual"] > before["dual"] and not after["estimate"]
    # Whoever reads of it, whoever starts now, and a replay have its bits.
    assert other.get("/models/m/predict?x=1:1&min_seq=251").json()["seq"] == 251
    assert bits(replica_of(other)) == bits(replica_of(client)) == bits(loaded(store))
    assert other.get("/models/m/refits").json()["refits"] == [finished(client, job)]
    assert other.get("/metrics").status_code == 200
    assert 'dualstream_refits_total{model="m"} 1.0' in client.get("/metrics").text
    # What another spec makes of the rows is not shown by this one's numbers.
    there = asyncio.run(replay(ALL, store, "m", None, {"rho": 0.5}))
    assert (there.left_out_refits, there.refused_controls) == (1, 0)
    # And it can be taken back.
    assert client.post("/models/m/rollback", json={"seq": 250}).status_code == 200
    assert client.get("/models/m/weights").json()["weights"] == weights
    learn(client, 250, 260)
    assert other.get("/models/m/predict?x=1:1&min_seq=262").json()["seq"] == 262
    assert bits(replica_of(other)) == bits(replica_of(client)) == bits(loaded(store))


def test_a_window_that_moves_on_meanwhile(serve, store, monkeypatch):
    client, other = serve(store=store), serve(store=store)
    client.put("/models/m", json=SPEC)
    learn(client, 0, 230)
    solve = refits._solve

    def slowly(*args: Any) -> Any:
        result = solve(*args)
        learn(other, 230, 260)
        return result

    monkeypatch.setattr(refits, "_solve", slowly)
    got = finished(client, begin(client)["job"])
    assert (got["status"], got["seq"], got["rows"]) == ("done", 230, 200)
    assert (got["entered_seq"], got["retained"]) == (261, 170)
    other.get("/models/m/predict?x=1:1&min_seq=261")
    assert bits(replica_of(other)) == bits(replica_of(client)) == bits(loaded(store))
    # So many rows that none of them is left.
    monkeypatch.setattr(refits, "_solve", lambda *args: (solve(*args), learn(other, 300, 550))[0])
    got = finished(client, begin(client)["job"])
    assert got["status"] == "refused" and "still retained" in got["reason"]
    assert got["entered_seq"] is not None
    assert replica_of(client).refused_controls == 1


def test_an_unlearned_sample_does_not_come_back(serve, store, monkeypatch):
    client, other = serve(store=store), serve(store=store)
    client.put("/models/m", json=SPEC)
    learn(client, 0, 200)
    solve = refits._solve

    def unlearn_meanwhile(*args: Any) -> Any:
        result = solve(*args)
        answer = other.delete("/models/m/samples/row/150")
        assert answer.status_code in (200, 202)
        client.get(f"/models/m/predict?x=1:1&min_seq={answer.json()['seq']}")
        return result

    monkeypatch.setattr(refits, "_solve", unlearn_meanwhile)
    before = len(controls(store))
    got = finished(client, begin(client)["job"])
    assert got["status"] == "refused" and "unlearned at seq 201" in got["reason"]
    # Nothing of it has come into the journal, and what had come there would be refused.
    assert got["entered_seq"] is None and before == 0
    assert [control.kind for control in controls(store) if control.kind == "refit"] == []
    monkeypatch.setattr(refits, "_solve", solve)
    result = finished(client, begin(client)["job"])
    assert (result["status"], result["rows"]) == ("done", 199)
    control = controls(store)[-1]
    replica = replica_of(client)
    state = bits(replica)
    stale = Control("refit", control.fields | {"seq": 200}, control.arrays)
    outcome = apply_to(replica, *read_control(replica, ALL.kinds, stale), stale.arrays)
    assert outcome.refusal is not None and "unlearned at seq 201" in outcome.refusal
    assert bits(replica) == state


def test_it_is_cancelled_from_anywhere(serve, store):
    client, other = serve(store=store), serve(store=store)
    client.put("/models/m", json=HARD)
    learn(client, 0, 200)
    for who in (client, other):
        job = begin(client, **NEVER)["job"]
        until(client, job, "running")
        problem = assert_problem(who.post("/models/m/refit"), 409, "refit-under-way")
        assert problem["job"] == job
        assert who.delete(f"/models/m/refits/{job}").status_code in (200, 202)
        got = finished(who, job)
        assert got["status"] == "cancelled" and got["entered_seq"] is None
        assert who.delete(f"/models/m/refits/{job}").json()["status"] == "cancelled"
    assert controls(store) == []
    assert_problem(client.get("/models/m/refits/none"), 404, "unknown-refit")
    assert_problem(client.delete("/models/m/refits/none"), 404, "unknown-refit")


def test_a_model_made_again_meanwhile_is_left_alone(serve, store):
    client, other = serve(store=store), serve(store=store)
    client.put("/models/m", json=HARD)
    learn(client, 0, 200)
    job = begin(client, **NEVER)["job"]
    until(client, job, "running")
    assert other.delete("/models/m").status_code in (200, 204)
    assert other.put("/models/m", json=SPEC).status_code == 201
    learn(other, 0, 210)
    deadline = time.monotonic() + SOLVING_S
    while (
        client.get("/models/m").json().get("seq") != 210
        or client.app._registry.deps.refit_thread.turn.locked()
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert client.get("/models/m/refits").json()["refits"] == []
    assert finished(client, begin(client)["job"])["status"] == "done"
    other.get("/models/m/predict?x=1:1&min_seq=211")
    assert bits(replica_of(other)) == bits(replica_of(client))


def test_two_results_for_the_same_window_are_one(serve, store, monkeypatch):
    client, other = serve(store=store), serve(store=store)
    client.put("/models/m", json=SPEC)
    learn(client, 0, 200)
    # As if neither saw the other's job.
    monkeypatch.setattr(refit_board, "LOST_MS", -1)
    solve = refits._solve
    began: list[str] = []

    def with_another(*args: Any) -> Any:
        result = solve(*args)
        if not began:
            began.append("")
            began[0] = other.post("/models/m/refit", json={"tol": 1e-5}).json()["job"]
            deadline = time.monotonic() + SOLVING_S
            while not controls(store):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        return result

    monkeypatch.setattr(refits, "_solve", with_another)
    client.post("/models/m/refit")
    deadline = time.monotonic() + SOLVING_S
    while is_computing(client) or is_computing(other):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    statuses = sorted(job["status"] for job in client.get("/models/m/refits").json()["refits"])
    assert statuses == ["done", "superseded"]
    assert len(controls(store)) == 1
    assert bits(replica_of(client)) == bits(loaded(store))


@pytest.mark.parametrize("forgets", [False, True], ids=["seen-here", "told-by-the-journal"])
def test_a_result_whose_append_went_unseen_is_its_own_when_sent_again(
    serve, store, monkeypatch, forgets
):
    client = serve(store=store)
    client.put("/models/m", json=SPEC)
    learn(client, 0, 200)
    committer = client.app._registry.find("m").committer
    replica = replica_of(client)
    submit = refits.Refits._submit
    sent: list[Any] = []
    previous: dict[str, Any] = {}

    async def unseen(self: Any, *args: Any) -> Any:
        committer._append_timeout_s = 0.0
        committer._journal = FaultyJournal(committer._journal, [Fault.UNANSWERED])
        receipt = await submit(self, *args)
        sent.append(receipt)
        previous.update(replica.control_outcomes.state())
        if forgets:  # as after a rebuild from a snapshot of before outcomes were kept
            replica.control_outcomes.restore({})
        return receipt

    monkeypatch.setattr(refits.Refits, "_submit", unseen)
    got = finished(client, begin(client)["job"])
    assert sent[0].position.duplicate
    assert (got["status"], got["entered_seq"]) == ("failed" if forgets else "done", 201)
    assert got.get("retained") == (None if forgets else 200)
    if forgets:  # it may have been refused there
        assert "the refit is journalled at seq 201" in got["reason"]
    assert len(controls(store)) == 1
    replica.control_outcomes.restore(previous)
    assert bits(replica_of(client)) == bits(loaded(store))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"algorithm": "sgd", "rho": 0}, "with rho 0"),
        ({"algorithm": "rda"}, "sum of all gradients"),
        ({"algorithm": "romma"}, "accumulates"),
        ({"algorithm": "portfolio"}, "shares of its members"),
    ],
)
def test_unsupported_learner_names_the_reason(client, spec, reason):
    client.put("/models/m", json=spec | {"features": SPEC["features"]})
    problem = assert_problem(client.post("/models/m/refit"), 409, "cannot-refit")
    assert reason in problem["detail"]


def test_bad_requests_are_refused(model):
    for request, detail in (
        ({"method": "svrg"}, "svrg supports the losses"),
        ({"rows": 100}, "leave out `rows`"),
        ({"method": "ipm"}, "ipm is not a method for linear models"),
        ({"options": {"parts": 2}}, "'parts' is not a known field: options takes visits"),
        ({"options": {"visits": "sorted"}}, "options.visits must be one of"),
    ):
        problem = assert_problem(model.post("/models/m/refit", json=request), 422, "invalid-refit")
        assert detail in problem["detail"]
    problem = assert_problem(model.post("/models/m/refit"), 409, "cannot-refit")
    assert "no rows" in problem["detail"]
    for request in ({"method": "newton"}, {"tol": 0}, {"max_epochs": 0}, {"other": 1}):
        assert model.post("/models/m/refit", json=request).status_code == 422
    for bad in (
        {"every": 99}, {"method": "x"}, {"tol": 0.0}, {"more": 1}, 7, {"options": {"parts": 2}},
    ):  # fmt: skip
        got = assert_problem(
            model.put("/models/n", json=SPEC | {"refit": bad}), 422, "invalid-spec"
        )
        assert "refit" in got["detail"]
    member = {"algorithm": "dual_ascent", "refit": {"every": 100}}
    spec = {"algorithm": "portfolio", "members": [member], "features": SPEC["features"]}
    got = assert_problem(model.put("/models/n", json=spec), 422, "invalid-spec")
    assert "members are not refitted" in got["detail"]


@pytest.mark.parametrize(
    ("spec", "method", "options", "is_rough"),
    [
        (SPEC, "dcd", {"visits": "cyclic", "newton": False}, False),
        (SPEC | {"loss": "logistic"}, "sdca", {"visits": "random"}, False),
        (SPEC | {"loss": "logistic"}, "aspdc_i", {"stages": "certified"}, False),
        (
            {"algorithm": "asset", "lambda": 0.01, "features": SPEC["features"]},
            "mcpa",
            {"parts": 2, "lazy": True, "rest": 3, "recall": 7, "safeguard": 0.2},
            False,
        ),
        (
            {
                "algorithm": "semiparametric",
                "task": "regression",
                "features": SPEC["features"],
                "refit": None,
                "gamma": 0.1,
            },
            "pdsg",
            {"working": 40, "fresh": 10, "width": 3, "theta": 0.5, "kkt": 1e-4},
            True,
        ),
    ],
    ids=["dcd", "sdca", "aspdc_i", "mcpa", "pdsg"],
)
def test_options_reach_the_method(client, monkeypatch, spec, method, options, is_rough):
    """Those of the request, and else those of the specification for the same method."""
    refit = {"every": 1_000_000, "method": method, "options": options}
    assert client.put("/models/m", json=spec | {"refit": refit}).status_code == 201
    assert client.get("/models/m").json()["spec"]["refit"]["options"] == options
    learn(client, 0, 120)
    seen = []
    name = "solve_semiparametric" if is_rough else "solve"
    for module in (semiparametric, weights_problem, window_problem):
        if hasattr(module, name):
            solver = getattr(module, name)

            def look(*args: Any, solver: Any = solver, **kwargs: Any) -> Any:
                seen.append({key: kwargs[key] for key in options if key in kwargs})
                return solver(*args, **kwargs)

            monkeypatch.setattr(module, name, look)
    done = finished(client, begin(client)["job"])
    assert done["status"] == "done" and done["options"] == options
    assert seen and all(one == options for one in seen)
    seen.clear()
    [option] = list(options)[:1]
    one = {option: options[option]}
    job = begin(client, method=method, tol=1e-6, options=one)["job"]
    assert finished(client, job)["options"] == one and all(other == one for other in seen)


def test_by_itself_once_for_each_count_however_many_look(serve, store):
    """Two workers come by each multiple; one of them computes it."""
    workers = [serve(store=store), serve(store=store)]
    spec = SPEC | {"refit": {"every": 100, "tol": 0.01}}
    workers[0].put("/models/m", json=spec)
    assert workers[0].get("/models/m").json()["spec"]["refit"]["method"] == "sdca"
    for n in range(0, 420, 20):
        answer = learn(workers[n // 20 % 2], n, n + 20)
        for worker in workers:
            worker.get(f"/models/m/predict?x=1:1&min_seq={answer['seq']}")
        deadline = time.monotonic() + SOLVING_S
        while any(
            replica_of(w).learner and w.app._registry.find("m").job(Refits).is_busy for w in workers
        ):
            assert time.monotonic() < deadline
            time.sleep(0.002)
    jobs = workers[1].get("/models/m/refits").json()["refits"]
    assert [job["due"] for job in jobs if job["status"] == "done"] == [400, 300, 200, 100]
    assert [job["status"] for job in jobs] == ["done"] * 4
    entered = [control.fields["job"] for control in controls(store)]
    assert entered == [job["job"] for job in reversed(jobs)]
    assert bits(replica_of(workers[0])) == bits(replica_of(workers[1])) == bits(loaded(store))


def age_jobs(store: str) -> None:
    """As if nobody had shown of them for a minute."""

    async def age() -> None:
        journal = await open_journal(store)
        try:
            record = await journal.get("m")
            where = ("m", record.incarnation)
            stored = await journal.cursor(*where, refit_board.CURSOR)
            assert stored is not None
            jobs = json.loads(stored)
            for job in jobs:
                job["updated_ms"] -= 60_000
            move = CursorMove(refit_board.CURSOR, stored, json.dumps(jobs))
            await journal.append(AppendRequest(*where, os.urandom(16), record.seq, (), move))
        finally:
            await journal.close()

    asyncio.run(age())


def test_a_killed_worker_s_refit_is_taken_over(serve, store):
    """kill -9 in its midst: what is acknowledged stands, and who comes by next computes it."""
    spec = HARD | {"refit": {"every": 200, "tol": 1e-12}}
    # Of rows of thousands of entries, and with a search for each step, it takes a while.
    spec |= {"map": {"kind": "fourier", "components": 2000}, "loss": "logistic"}
    spec |= {"regularizer": {"kind": "elastic_net", "delta": 0.001}}
    with ServerProcess(store, stderr=subprocess.DEVNULL) as first:
        with httpx.Client(base_url=first.url, timeout=60) as client:
            assert client.put("/models/m", json=spec).status_code == 201
            learn(client, 0, 210)
            deadline = time.monotonic() + SOLVING_S
            while True:
                jobs = client.get("/models/m/refits").json()["refits"]
                if jobs and jobs[0]["status"] == "running" and jobs[0]["epochs"] > 0:
                    break
                assert time.monotonic() < deadline, jobs
                time.sleep(0.01)
        first.kill()
    age_jobs(store)
    client = serve(store=store)
    got = client.get("/models/m").json()
    assert got["seq"] == got["samples"] == 210
    [lost] = client.get("/models/m/refits").json()["refits"]
    assert lost["status"] == "lost" and "no heartbeat" in lost["reason"]
    learn(client, 210, 310)
    deadline = time.monotonic() + SOLVING_S
    while len(jobs := client.get("/models/m/refits").json()["refits"]) < 2:
        assert time.monotonic() < deadline, jobs
        time.sleep(0.01)
    assert [job["due"] for job in jobs] == [200, 200]
    assert client.delete(f"/models/m/refits/{jobs[0]['job']}").status_code in (200, 202)
    assert finished(client, jobs[0]["job"])["status"] == "cancelled"
    digest = client.get("/models/m?digest=true").json()["state_digest"]
    assert loaded(store).capture().state_digest() == digest


def test_the_reference_bounds_what_is_served_and_the_regret_is_by_definition(serve, store):
    client = serve(store=store, snapshot_every=100)
    client.put("/models/m", json=SPEC)
    assert_problem(client.get("/models/m/certificate?reference=true"), 404, "no-reference")
    got = [client.post("/models/m/learn?scores=true", json=samples(0, 230)).json()]
    got += [
        client.post("/models/m/learn?scores=true", json=samples(n, n + 1)).json()
        for n in range(230, 250)
    ]
    assert "reference" not in client.get("/models/m/certificate").json()
    plain = client.get("/models/m/certificate").json()
    answer = client.get("/models/m/certificate?reference=true").json()
    result = answer.pop("reference")
    assert answer == plain
    # The window is sliding: all that counts is retained, so that both speak of one problem.
    assert result["served"] == pytest.approx(plain["primal"])
    assert plain["dual"] <= result["lower_bound"] <= result["objective"] <= result["served"]
    assert result["gap"] >= 0.0 and result["converged"] and result["seq"] == 250
    finished(client, begin(client, tol=1e-5)["job"])
    refitted = client.get("/models/m/certificate?reference=true").json()
    assert refitted["primal"] == pytest.approx(result["objective"], rel=2e-4)
    assert refitted["reference"]["gap"] <= 2e-4 * refitted["primal"]
    # The regret: what the last 200 rows cost as they were served, less what they cost there.
    rows = samples(0, 250)
    scores = np.concatenate([np.atleast_1d(one["scores"]) for one in got])[-200:]
    signs = 2.0 * np.array(rows["y"][-200:]) - 1.0
    served = np.maximum(0.0, 1.0 - signs * scores).sum()
    body = {"samples": [{"x": x} for x in rows["x"][-200:]]}
    best = np.array(client.post("/models/m/predict", json=body).json()["scores"])
    regret = served - np.maximum(0.0, 1.0 - signs * best).sum()
    assert (result["rows"], result["regret_rows"]) == (200, 200)
    assert result["regret"] == pytest.approx(regret, abs=0.5) and regret > 1.0
    # Who starts now has the losses from a snapshot and from the rows behind it.
    other = serve(store=store)
    again = other.get("/models/m/certificate?reference=true").json()["reference"]
    assert again == refitted["reference"]
    shown = other.get("/metrics").text
    assert f'dualstream_regret{{model="m"}} {again["regret"]!r}' in shown
    assert 'dualstream_regret_rows{model="m"} 200.0' in shown
    assert 'dualstream_reference_age_seconds{model="m"}' in shown
    # After a rollback the window's rows are others than those that came last.
    client.post("/models/m/rollback", json={"seq": 240})
    learn(client, 250, 255)
    result = client.get("/models/m/certificate?reference=true").json()["reference"]
    assert (result["rows"], result["regret_rows"]) == (200, 5)
    answer = client.get("/models/m/certificate?reference=true&member=a")
    assert_problem(answer, 404, "no-reference")
    client.put("/models/s", json={"algorithm": "sgd", "features": SPEC["features"]})
    answer = client.get("/models/s/certificate?reference=true")
    assert "sgd retains no rows" in assert_problem(answer, 404, "no-reference")["detail"]


def test_solver_thread_yields_to_requests():
    before = os.getpriority(os.PRIO_PROCESS, 0)
    desk = SolverThread()
    try:
        computing = asyncio.run(desk.run(os.getpriority, os.PRIO_PROCESS, 0))
    finally:
        desk.close()
    assert computing == NICENESS
    assert os.getpriority(os.PRIO_PROCESS, 0) == before  # it is the thread's alone
