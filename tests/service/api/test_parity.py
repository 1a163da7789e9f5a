"""What the server learns over HTTP has the bits of the library called directly."""

import json

import numpy as np
import pytest

from dualstream.service.server.app import create_app
from dualstream.service.settings import Settings
from dualstream.solvers import Batch, make_learner, make_progressive, resolve_spec
from dualstream.solvers.protocols.served_weights import NEGLIGIBLE
from tests.adult import adult_lines

ROWS = 300
SPECS = {
    "hinge": {"loss": "hinge", "window": {"kind": "exponential", "beta": 0.99}},
    "logistic": {"loss": "logistic", "window": {"kind": "sliding", "length": 60}},
    "huber": {"task": "regression", "loss": "huber", "rho": 0.1},
}


def whole(spec: dict) -> dict:
    return {"algorithm": "dual_ascent", "features": {"kind": "indexed", "dim": 123}} | spec


def rows() -> Batch:
    return Batch.from_libsvm(b"\n".join(adult_lines()[:ROWS]), 123).batch


def send_some_each_way(client, model: str, lines: list[bytes]) -> None:
    """Single samples, then batches of growing size, in three formats by turns."""
    at, size, turn = 0, 1, 0
    while at < len(lines):
        piece = lines[at : at + size]
        samples = [as_sample(line) for line in piece]
        if turn % 3 == 0:
            body, media = b"\n".join(piece), "text/x-libsvm"
        elif turn % 3 == 1 or size == 1:
            body = json.dumps(samples[0] if size == 1 else {"samples": samples}).encode()
            media = "application/json"
        else:
            columns = {"x": [s["x"] for s in samples], "y": [s["y"] for s in samples]}
            body, media = json.dumps(columns).encode(), "application/json"
        answer = client.post(
            f"/models/{model}/learn", content=body, headers={"content-type": media}
        )
        assert answer.status_code == 200, answer.text
        at, turn = at + size, turn + 1
        size = 1 if at < 100 else min(size + 7, 60)


def as_sample(line: bytes) -> dict:
    label, *pairs = line.decode().split()
    return {"x": {p.split(":")[0]: float(p.split(":")[1]) for p in pairs}, "y": float(label)}


@pytest.mark.parametrize("name", SPECS)
def test_300_samples_over_http_give_the_bits_of_the_library(serve, store, name):
    spec = whole(SPECS[name])
    client = serve(store=store, snapshot_every=70)
    client.put("/models/m", json=spec)
    send_some_each_way(client, "m", adult_lines()[:ROWS])

    learner = make_learner(resolve_spec(spec))
    batch = rows()
    outcome = learner.learn(batch)
    progress = make_progressive(learner.spec)
    progress.update(batch.labels, outcome.scores, outcome.losses, ~outcome.rejected)

    replica = client.app._registry.find("m").replica
    assert replica.seq == ROWS
    for mine, theirs in (
        (replica.learner.state(), learner.state()),
        (replica.progress.state(), progress.state()),
    ):
        for key, array in theirs.items():
            assert mine[key].tobytes() == array.tobytes(), key
    answered = client.get("/models/m/weights?top=200").json()
    served = np.zeros(123)
    for weight in answered["weights"]:
        served[weight["index"] - 1] = weight["weight"]
    expected = learner.weights.copy()
    expected[np.abs(expected) <= NEGLIGIBLE * np.abs(expected).max()] = (
        0.0  # neither listed nor counted
    )
    assert served.tobytes() == expected.tobytes()
    certificate = client.get("/models/m/certificate").json()
    assert certificate["gap"] == learner.certificate().gap


def test_reads_leave_every_bit_alone(serve, store):
    client = serve(store=store)
    client.put("/models/m", json=whole(SPECS["hinge"]))
    send_some_each_way(client, "m", adult_lines()[:ROWS])
    replica = client.app._registry.find("m").replica
    before = {key: array.tobytes() for key, array in replica.learner.state().items()}
    for path in ("", "/metrics", "/weights", "/certificate", "/predict?x=1:1"):
        assert client.get(f"/models/m{path}").status_code == 200
    assert client.get("/metrics").status_code == 200
    client.post("/models/m/predict", json={"samples": [{"x": {"3": 1}}] * 50})
    after = {key: array.tobytes() for key, array in replica.learner.state().items()}
    assert after == before and replica.seq == ROWS


def test_app_is_made_from_settings_alone(tmp_path):
    app = create_app(Settings(store=f"sqlite:///{tmp_path / 'a.db'}"))
    assert not (tmp_path / "a.db").exists(), "nothing is opened before the lifespan begins"
    assert app.startup.reason == "starting"
