"""Progress as server-sent events: what changes is shown, and listening holds nothing."""

import httpx
import pytest

from dualstream.service.api import events
from dualstream.service.cli.demo.server_process import ServerProcess
from tests.service.api.support import Listener
from tests.service.conftest import SPEC, assert_problem
from tests.support import until

GOOD = {"x": {"1": 1}, "y": 1}


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.2)


def test_progress_is_shown_as_it_changes(model):
    model.post("/models/m/learn", json=GOOD)
    listener = Listener(model)
    assert listener.status() == 200
    kind, first_id, got = listener.hear()
    metrics = model.get("/models/m/metrics")
    assert kind == "progress" and f'"{first_id}"' == metrics.headers["etag"]
    same = ("seq", "samples", "rejected", "since_start", "rolling", "drift")
    expected = {name: metrics.json()[name] for name in same}
    certificate = model.get("/models/m/certificate").json()
    gap = {name: certificate[name] for name in got["certificate"]}
    nonzeros = model.get("/models/m/weights").json()["nonzeros"]
    expected |= {"model": "m", "rows_per_second": None, "certificate": gap, "nonzeros": nonzeros}
    expected |= {"label_delay_s": None, "support": None}
    assert got == expected
    model.post("/models/m/learn", json={"samples": [GOOD] * 5})
    _, second_id, got = listener.hear()
    assert (got["seq"], got["samples"]) == (6, 6) and got["rows_per_second"] > 0
    listener.leave()
    # Who comes back is not shown once more what it knows.
    again = Listener(model, last=second_id)
    assert again.status() == 200
    model.post("/models/m/learn", json=GOOD)
    assert again.hear()[2]["seq"] == 7
    again.leave()


def test_the_stream_ends_with_the_model(model, quick):
    listener = Listener(model)
    assert listener.status() == 200 and listener.hear()[2]["seq"] == 0
    model.delete("/models/m")
    assert listener.hear()[0] == "deleted"
    assert listener.said.get(timeout=30) == {"type": "http.response.body", "body": b""}
    listener.ending.result(timeout=30)
    # Made again meanwhile, it is another one.
    model.put("/models/m", json=SPEC)
    listener = Listener(model)
    assert listener.status() == 200 and listener.hear()[2]["seq"] == 0
    model.delete("/models/m")
    model.put("/models/m", json=SPEC)
    assert listener.hear()[0] == "deleted"


def test_listening_does_not_hold_a_model(serve, store, quick):
    """Of one that left memory the store's seq is shown, and nobody loads it for that."""
    client = serve(store=store, models_bytes=1)
    client.put("/models/m", json=SPEC)
    listener = Listener(client)
    assert listener.status() == 200 and listener.hear()[2]["samples"] == 0
    registry = client.app._registry
    client.put("/models/other", json=SPEC)
    client.post("/models/other/learn", json=GOOD)
    until(lambda: registry.find("m") is None)
    serve(store=store).post("/models/m/learn", json=GOOD)  # by another worker
    kind, _, got = listener.hear()
    assert (kind, got) == ("progress", {"model": "m", "seq": 1})
    assert registry.find("m") is None
    client.post("/models/m/learn", json=GOOD)
    assert listener.hear()[2]["samples"] == 2
    listener.leave()


def test_silence_is_broken_by_comments(model, quick):
    listener = Listener(model)
    assert listener.status() == 200
    listener.hear()
    assert listener.said.get(timeout=30)["body"] == b":\n\n"
    listener.leave()


def test_listeners_are_bounded_and_refused_clearly(serve, monkeypatch):
    monkeypatch.setattr("dualstream.service.api.events.MAX_LISTENERS", 1)
    client = serve()
    client.put("/models/m", json=SPEC)
    for query in ("every_ms=99", "every_ms=60001", "every_ms=x", "often=1"):
        assert_problem(client.get(f"/models/m/events?{query}"), 422, "invalid-query")
    assert_problem(client.get("/models/none/events"), 404, "unknown-model")
    assert_problem(client.post("/models/m/events"), 405, "method-not-allowed")
    listener = Listener(client)
    assert listener.status() == 200
    assert_problem(client.get("/models/m/events"), 503, "too-many-listeners")
    listener.leave()
    listener = Listener(client)
    assert listener.status() == 200
    listener.leave()


def test_a_server_that_shuts_down_ends_the_streams(tmp_path):
    with ServerProcess(f"sqlite:///{tmp_path / 'store.db'}") as server:
        httpx.put(f"{server.url}/models/m", json=SPEC, timeout=60).raise_for_status()
        with httpx.stream("GET", f"{server.url}/models/m/events", timeout=60) as answer:
            assert answer.headers["content-type"] == "text/event-stream"
            lines = answer.iter_lines()
            assert next(lines) == "event: progress"
            server.stop()
            assert [line for line in lines if line.startswith("event")] == []
