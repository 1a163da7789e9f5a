"""A semiparametric model in the service: refits by hand and by itself, coefficients by name."""

import asyncio
import json
import re
import time
from typing import Any

import numpy as np
import pytest

from dualstream.service.features import ALL
from dualstream.service.features.refits import job as refits
from dualstream.service.replay.replay import replay
from load_tests import milan
from tests.service.conftest import assert_problem
from tests.service.features.refits.support import SOLVING_S, begin, controls, finished
from tests.service.support import bits, loaded, replica_of

SPEC: dict[str, Any] = {
    "algorithm": "semiparametric",
    "task": "regression",
    "features": {"kind": "indexed", "dim": 3},
    "loss": {"kind": "epsilon_insensitive", "epsilon": 0.5},
    "basis": [
        "constant",
        {"kind": "linear", "feature": 2, "name": "warmth"},
        {"kind": "sine", "feature": 1, "period": 365.25},
        {"kind": "cosine", "feature": 1, "period": 365.25, "name": "winter"},
        {"kind": "linear", "feature": 2, "name": "warmth again"},
    ],
    "gamma": 1e-4,
    "C": 0.02,
    "retain": 400,
    "refit": None,
}


@pytest.fixture(autouse=True)
def beats_fast(monkeypatch):
    monkeypatch.setattr(refits, "HEARTBEAT_S", 0.02)


def days(first: int, last: int) -> dict[str, Any]:
    """Deaths by day: a season of a year beside the weather and the air, as in Milan."""
    random = np.random.default_rng(4)
    day = np.arange(1.0, last + 1.0)
    winter = np.cos(2.0 * np.pi * day / 365.25)
    warmth = random.normal(size=last)
    dust = random.uniform(0.0, 100.0, last)
    y = 30.0 + 6.0 * winter - 2.0 * warmth + 0.02 * dust + random.normal(size=last)
    x = np.stack([day, warmth, dust], axis=1)
    return {"x": x[first:].tolist(), "y": y[first:].tolist()}


def learn(client, first: int, last: int) -> dict[str, Any]:
    answer = client.post("/models/m/learn", json=days(first, last))
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_coefficients_are_read_out_by_name_and_are_the_same_for_all(serve, store):
    client, other = serve(store=store, snapshot_every=100), serve(store=store)
    assert client.put("/models/m", json=SPEC).status_code == 201
    learn(client, 0, 450)
    got = client.get("/models/m/weights").json()
    assert "coefficients" not in got and got["weights"] == []
    assert got["intercept"] == pytest.approx(np.mean(days(0, 450)["y"]))
    job = finished(client, begin(client, tol=1e-4)["job"])
    assert (job["status"], job["method"], job["seq"], job["rows"]) == ("done", "ipm", 450, 400)
    assert job["converged"] and job["relative_gap"] <= 1e-4 and job["retained"] == 400
    assert job["dropped"] == ["warmth again"] and job["coefficients_are_unique"] is True
    got = client.get("/models/m/weights").json()
    result = {one["name"]: one["value"] for one in got["coefficients"]}
    assert list(result) == ["constant", "warmth", "sine(1, 365.25)", "winter", "warmth again"]
    assert [one["dropped"] for one in got["coefficients"]] == [False] * 4 + [True]
    assert result["winter"] == pytest.approx(6.0, abs=0.3)
    assert result["warmth"] == pytest.approx(-2.0, abs=0.3)
    assert result["sine(1, 365.25)"] == pytest.approx(0.0, abs=0.3)
    assert got["coefficients_are_unique"] is True and 0 < got["support"] <= 400
    assert got["intercept"] == result["constant"]
    assert [(w["index"], w["weight"]) for w in got["weights"]] == [(2, result["warmth"])]
    loss = [client.post("/models/m/learn?scores=true", json=days(450, 500)).json()]
    errors = np.array(loss[0]["scores"]) - np.array(days(450, 500)["y"])
    assert np.abs(errors).mean() < 1.3
    # Whoever reads of it, whoever starts now from a snapshot, and a rollback and back again.
    other.get("/models/m/predict?x=1:1&min_seq=501")
    assert bits(replica_of(other)) == bits(replica_of(client)) == bits(loaded(store))
    assert other.get("/models/m/weights").json() == client.get("/models/m/weights").json()
    there = asyncio.run(replay(ALL, store, "m", None, {"C": 0.5}))
    assert (there.left_out_refits, there.refused_controls) == (1, 0)
    assert client.post("/models/m/rollback", json={"seq": 450}).status_code == 200
    assert "coefficients" not in client.get("/models/m/weights").json()
    assert client.post("/models/m/rollback", json={"seq": 501}).status_code == 200
    assert client.get("/models/m/weights").json()["coefficients"] == got["coefficients"]
    other.get("/models/m/predict?x=1:1&min_seq=503")
    assert bits(replica_of(other)) == bits(replica_of(client)) == bits(loaded(store))
    # What it has not: a certificate, a reference, an id to unlearn; what it does not know.
    assert_problem(client.get("/models/m/certificate"), 404, "no-certificate")
    assert_problem(client.get("/models/m/export?format=json"), 409, "not-exportable")
    assert client.get("/metrics").status_code == 200
    problem = assert_problem(
        client.post("/models/m/refit", json={"method": "sdca"}), 422, "invalid-refit"
    )
    assert "ipm, pdsg, mpd" in problem["detail"]


def newest_job(client, due: int) -> str:
    deadline = time.monotonic() + SOLVING_S
    while True:
        jobs = client.get("/models/m/refits").json()["refits"]
        if jobs and jobs[0]["due"] == due:
            return str(jobs[0]["job"])
        assert time.monotonic() < deadline, jobs
        time.sleep(0.005)


def test_it_is_refitted_by_itself(serve, store):
    client = serve(store=store)
    spec = SPEC | {"refit": {"every": 100, "method": "pdsg"}, "retain": 150}
    assert client.put("/models/m", json=spec).status_code == 201
    for n in (0, 100, 200):
        learn(client, n, n + 100)
        got = finished(client, newest_job(client, n + 100))
        assert (got["status"], got["method"], got["rows"]) == ("done", "pdsg", min(n + 100, 150))
    assert [control.kind for control in controls(store)] == ["refit"] * 3
    assert client.get("/models/m/weights").json()["coefficients"][3]["name"] == "winter"
    assert bits(replica_of(client)) == bits(loaded(store))


def test_the_spec_of_the_documented_example_is_the_one_that_is_run():
    documented = re.search(r"-d '(\{.*?\})'", milan.PLACE.read_text(), re.DOTALL)
    assert documented is not None
    assert json.loads(documented[1]) == milan.spec(days=3652)
