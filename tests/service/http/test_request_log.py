"""X-Request-ID and the access log."""

import json
import logging
import math
import re

import httpx
import pytest
from starlette.testclient import TestClient

from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.http import request_log
from dualstream.service.http.api_keys import new_key
from dualstream.wire.chunking.chunks import CHUNK_BYTES
from tests.service.conftest import SPEC, Serve, assert_problem

ROW = {"x": {"1": 1.0}, "y": 1}


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.name == "dualstream.access"]


def test_id_is_taken_answered_and_made(model: TestClient):
    fields = {"x-request-id": "order-17"}
    answer = model.post("/models/m/learn", json=ROW, headers=fields)
    assert answer.headers["x-request-id"] == "order-17"
    made = [model.get("/readyz").headers["x-request-id"] for _ in range(3)]
    assert len(set(made)) == 3 and all(re.fullmatch(r"[0-9a-f]{12}-[0-9a-f]+", one) for one in made)


@pytest.mark.parametrize("bad", [b"", b"a b", b"x" * 129, "é".encode(), b"a\x7fb"])
def test_id_that_cannot_be_a_header_is_replaced(model: TestClient, bad: bytes):
    got = model.get("/readyz", headers={b"x-request-id": bad}).headers["x-request-id"]
    assert got.encode() != bad and got.isascii()


@pytest.mark.parametrize(
    ("method", "path", "status", "slug"),
    [
        ("POST", "/models/none/learn", 404, "unknown-model"),  # a fast route
        ("GET", "/models/none/weights", 404, "unknown-model"),  # a FastAPI route
        ("GET", "/nowhere", 404, "not-found"),
        ("POST", "/readyz", 405, "method-not-allowed"),
        ("GET", "/%ff", 422, "invalid-request"),
    ],
)
def test_problem_has_the_id(client: TestClient, method: str, path: str, status: int, slug: str):
    inputs = {"json": ROW} if path.endswith("learn") else {}
    answer = client.request(method, path, headers={"x-request-id": "p1"}, **inputs)
    assert answer.status_code == status and answer.json()["type"].endswith(slug)
    assert answer.json()["request_id"] == answer.headers["x-request-id"] == "p1"


def test_key_is_named_and_a_refusal_has_the_id(serve: Serve, caplog: pytest.LogCaptureFixture):
    shown, key = new_key("reader", "predict")
    client = serve(keys=key.line(), access_log="all")
    answer = client.get("/models", headers={"x-request-id": "p2"})
    assert assert_problem(answer, 401, "unauthorized")["request_id"] == "p2"
    with caplog.at_level(logging.INFO):
        client.get("/models", headers={"authorization": f"Bearer {shown}"})
    assert lines(caplog)[-1].key == "reader" and shown not in str(vars(lines(caplog)[-1]))


def test_line_of_each_request(serve: Serve, caplog: pytest.LogCaptureFixture):
    client = serve(access_log="all")
    client.put("/models/m", json=SPEC)
    with caplog.at_level(logging.INFO):
        caplog.clear()
        learned = client.post("/models/m/learn?scores=1", json=[ROW, ROW | {"y": 5}])
        client.post("/models/m/predict", json={"x": {"1": 1.0}})
        client.request("HEAD", "/models/m")
        client.get("/nowhere")
        sourced = {"dualstream-source": "s; from=0; to=2; first"}
        client.post("/models/m/learn", json=[ROW, ROW | {"y": 5}], headers=sourced)
        long = (json.dumps(ROW).encode() + b"\n") * (CHUNK_BYTES // len(json.dumps(ROW)))
        ndjson = {"content-type": "application/x-ndjson"}
        client.post("/models/m/learn", content=long, headers=ndjson)
        tensor = {"name": "x", "shape": [2, 5], "datatype": "FP64", "data": [1.0] * 10}
        client.post("/v2/models/m/infer", json={"inputs": [tensor]})
        client.get("/predict", params={"model": "m", "x": "1:1"})
    learn, predict, head, nowhere, source, upload, infer, by_query = lines(caplog)
    for line, rows in ((source, 2), (upload, long.count(b"\n")), (infer, 2), (by_query, 1)):
        assert (line.status, line.model, line.rows) == (200, "m", rows)
    assert (learn.method, learn.path, learn.status) == ("POST", "/models/m/learn", 200)
    assert (learn.model, learn.rows) == ("m", 2)
    assert learn.response_bytes == len(learned.content)
    assert learn.request_bytes == len(learned.request.content)
    assert 0 < learn.duration_ms < 30_000 and learn.client == "testclient"
    assert (predict.status, predict.rows) == (200, 1)
    assert (head.method, head.status, head.response_bytes) == ("HEAD", 200, 0)
    assert (nowhere.status, nowhere.model, nowhere.rows) == (404, None, None)


def test_query_with_a_row_is_not_logged(serve: Serve, caplog: pytest.LogCaptureFixture):
    client = serve(access_log="all")
    client.put("/models/m", json=SPEC)
    with caplog.at_level(logging.INFO):
        client.get("/models/m/predict", params={"x": "1:31337"})
    assert lines(caplog)[-1].rows == 1 and "31337" not in str(vars(lines(caplog)[-1]))


def test_sampled_log_has_every_hundredth_request(
    serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(request_log, "SLOW_S", math.inf)
    sampled, silent = serve(access_log="sampled"), serve()
    with caplog.at_level(logging.INFO):
        caplog.clear()
        for _ in range(3 * request_log.SAMPLE):
            sampled.get("/livez")
            silent.get("/livez")
    assert len(lines(caplog)) == 3


def test_slow_request_is_logged_by_default(
    serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    client = serve()
    monkeypatch.setattr(request_log, "SLOW_S", 0.0)
    client.get("/livez")
    (slow,) = [one for one in lines(caplog) if one.path == "/livez"]
    assert slow.levelno == logging.WARNING and slow.getMessage() == "slow request"


def test_worker_writes_json_lines_with_worker_and_start(tmp_path):
    log = tmp_path / "log"
    flags = ["--workers", "2", "--log-format", "json", "--access-log", "all"]
    with log.open("w") as stderr:
        store = f"sqlite:///{tmp_path / 'a.db'}"
        with ServerProcess(store, flags, stderr=stderr) as server:
            httpx.get(f"{server.url}/livez", headers={"x-request-id": "w1"}).raise_for_status()
    got = [json.loads(line) for line in log.read_text().splitlines()]
    (start,) = [one for one in got if one["message"] == "started"]
    assert start["store"] == store and start["durability"] == "normal" and "worker" not in start
    assert start["settings"]["workers"] == "2" and "log_level" not in start["settings"]
    (request,) = [one for one in got if one.get("request_id") == "w1"]
    assert request["worker"] in ("worker-0", "worker-1") and request["path"] == "/livez"
    stopped = {one["worker"] for one in got if one["message"] == "stopped"}
    assert stopped == {"worker-0", "worker-1"}
