"""What a server takes of a request, of a model and of a store, each with its clear refusal."""

import gc
import io
import json
import time

import pyarrow as pa
import pytest
import zstandard

from dualstream.service.api import learn_and_predict as hot
from dualstream.service.codecs import RowLimits, RowSchema, parse_body
from dualstream.service.codecs.row_schema import LONGEST_NAME
from dualstream.solvers import make_learner, resolve_spec
from dualstream.solvers.rows.intercept import width_of
from dualstream.wire.chunking import chunks
from dualstream.wire.problem_json import Problem
from tests.service.conftest import SPEC, assert_problem

HASHED = {"algorithm": "perceptron", "features": {"kind": "hashed", "bits": 10}}
LIMITS = RowLimits(rows=400, nonzeros=4)
LONGER, LONGEST = "n" * LONGEST_NAME, "n" * (LONGEST_NAME + 1)
PAD = 200
"""Rows before the one in question: with them a body is long enough for kernels."""


def samples_of(kind: str, rows: list[dict[str, float]]) -> bytes:
    """A body of rows labelled 1."""
    samples = [{"x": x, "y": 1} for x in rows]
    if kind == "application/json":
        return json.dumps({"samples": samples}).encode()
    if kind == "application/x-ndjson":
        return "\n".join(map(json.dumps, samples)).encode()
    if kind == "text/x-vw":
        lines = ["1 | " + " ".join(f"{name}:{value}" for name, value in x.items()) for x in rows]
        return "\n".join(lines).encode()
    if kind == "text/x-libsvm":
        lines = ["1 " + " ".join(f"{name}:{value}" for name, value in x.items()) for x in rows]
        return "\n".join(lines).encode()
    names = sorted({name for x in rows for name in x})
    table = {name: [x.get(name, 0.0) for x in rows] for name in names} | {"y": [1] * len(rows)}
    if kind == "text/csv":
        lines = [
            ",".join(table),
            *(",".join(map(str, row)) for row in zip(*table.values(), strict=True)),
        ]
        return "\n".join(lines).encode()
    out = io.BytesIO()
    batch = pa.record_batch(table)
    with pa.ipc.new_stream(out, batch.schema) as stream:
        stream.write_batch(batch)
    return out.getvalue()


KINDS = [
    "application/json",
    "application/x-ndjson",
    "text/csv",
    "text/x-vw",
    "text/x-libsvm",
    "application/vnd.apache.arrow.stream",
]


@pytest.mark.parametrize("pad", [0, PAD])
@pytest.mark.parametrize("kind", KINDS)
def test_every_format_has_the_limits(kind: str, pad: int):
    features = {"kind": "indexed", "dim": 9}
    if kind == "text/x-vw":
        features = HASHED["features"]
    spec = resolve_spec({"algorithm": "perceptron", "features": features})
    schema = RowSchema(spec, RowLimits(rows=pad + 2, nonzeros=4))
    fine = {str(k): 0.5 for k in (1, 2, 3, 4)}
    rows = [fine] * pad + [fine | {"5": 0.5}, fine]
    result = parse_body(schema, kind, samples_of(kind, rows), labelled=True)
    assert [error.index for error in result.errors] == [pad]
    assert "5 non-zero features; the limit is 4" in result.errors[0].reason
    assert list(result.row_indices) == [*range(pad), pad + 1]
    assert len(result.rows) == pad + 1
    assert {name for _, name in result.names} <= set(fine)
    with pytest.raises(Exception, match="more than") as refused:
        parse_body(schema, kind, samples_of(kind, [fine, *rows]), labelled=True)
    assert (refused.value.status, refused.value.slug) == (413, "too-many-rows")


@pytest.mark.parametrize("pad", [0, PAD])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "text/x-libsvm"])
def test_every_format_has_the_longest_name(kind: str, pad: int):
    schema = RowSchema(resolve_spec(HASHED), LIMITS)
    rows = [{LONGER: 1.0}] * pad + [{LONGEST: 1.0}, {LONGER: 1.0}]
    body = samples_of(kind, rows)
    if kind in ("text/csv", "application/vnd.apache.arrow.stream"):
        with pytest.raises(Exception, match="at most 1024 characters") as refused:
            parse_body(schema, kind, body, labelled=True)
        assert refused.value.status == 422
        return
    result = parse_body(schema, kind, body, labelled=True)
    assert [error.index for error in result.errors] == [pad]
    assert "at most 1024 characters" in result.errors[0].reason
    assert len(result.rows) == pad + 1


def test_requests_of_every_kind_are_bounded(serve, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1024)
    monkeypatch.setattr(hot, "CHUNK_BYTES", 1024)
    limits = RowLimits(rows=2, nonzeros=2)
    monkeypatch.setattr("dualstream.service.models.registry.DEFAULT_LIMITS", limits)
    client = serve()
    client.put("/models/m", json={**SPEC, "algorithm": "sgd"})
    row = {"x": {"1": 1, "2": 1}, "y": 1}
    three = {"samples": [row] * 3}
    assert_problem(client.post("/models/m/learn", json=three), 413, "too-many-rows")
    assert_problem(client.post("/models/m/predict", json=three), 413, "too-many-rows")
    waiting = {"samples": [{"x": {}, "id": k} for k in range(3)]}
    answer = client.post("/models/m/predict?remember=true", json=waiting)
    assert_problem(answer, 413, "too-many-rows")
    labels = {"labels": [{"id": k, "y": 1} for k in range(3)]}
    assert_problem(client.post("/models/m/labels", json=labels), 413, "too-many-rows")
    got = assert_problem(client.get("/models/m/predict?x=1:1,2:1,3:1"), 422, "invalid-rows")
    assert got["errors"][0]["pointer"] == "/x"
    # A streamed upload has no limit of rows.
    lines = {"content-type": "text/x-libsvm"}
    learned = client.post("/models/m/learn", content=b"1 1:1\n" * 1000, headers=lines)
    assert learned.status_code == 200 and learned.json()["seq"] == 1000


def test_a_store_takes_so_many_models(serve, store):
    client = serve(store=store, max_models=2)
    assert client.put("/models/a", json=SPEC).status_code == 201
    assert client.put("/models/b", json=SPEC).status_code == 201
    answer = client.put("/models/c", json=SPEC)
    assert_problem(answer, 429, "too-many-models")
    assert int(answer.headers["retry-after"]) >= 1
    assert client.put("/models/a", json=SPEC).status_code == 200
    client.delete("/models/a")
    assert client.put("/models/c", json=SPEC).status_code == 201


def test_a_model_takes_so_much_memory(serve, monkeypatch):
    client = serve(max_model_bytes=100_000)
    large = {"algorithm": "sgd", "features": {"kind": "indexed", "dim": 50_000}}
    assert_problem(client.put("/models/large", json=large), 422, "model-too-large")

    def make_no_learner(spec):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("dualstream.service.models.compiled_specs.make_learner", make_no_learner)
        beyond = large | {"features": {"kind": "hashed", "bits": 21}}
        assert_problem(client.put("/models/beyond", json=beyond), 422, "model-too-large")
        tables = {
            "algorithm": "sgd",
            "features": {"kind": "hashed", "bits": 8},
            "columns": {"types": {"card": "category"}},
            "history": [{"by": "card", "labels": 1, "keys": 10_000}],
        }
        assert_problem(client.put("/models/tables", json=tables), 422, "model-too-large")
    assert client.get("/models/large").status_code == 404

    # What is refused is not built before: neither for its size, nor as there is no place for it.
    def make_narrow(spec):
        assert width_of(spec["features"]) < 1 << 20
        return make_learner(spec)

    with monkeypatch.context() as patch:
        patch.setattr("dualstream.service.models.compiled_specs.make_learner", make_narrow)
        patch.setattr("dualstream.service.models.sizeof.make_learner", make_narrow)
        for wide in ({"kind": "hashed", "bits": 24}, {"kind": "indexed", "dim": 10**7}):
            for more in ({}, {"algorithm": "portfolio"}, {"task": "multiclass"}):
                answer = client.put("/models/wide", json=large | more | {"features": wide})
                assert_problem(answer, 422, "model-too-large")
        roomy = serve(max_models=1)
        assert roomy.put("/models/a", json=SPEC).status_code == 201
        assert_problem(
            roomy.put("/models/b", json=large | {"features": wide}), 429, "too-many-models"
        )
        assert_problem(roomy.put("/models/a", json=large | {"features": wide}), 409, "conflict")
    hashed = {"algorithm": "sgd", "features": {"kind": "hashed", "bits": 8}}
    assert client.put("/models/m", json=hashed).status_code == 201
    # Names are what grows: no more is learned, and nothing of the model is lost.
    for turn in range(200):
        x = {f"a name of some length {turn} {k}": 1 for k in range(50)}
        answer = client.post("/models/m/learn", json={"samples": [{"x": x, "y": 1}] * 40})
        if answer.status_code != 200:
            break
    assert_problem(answer, 429, "model-too-large")
    assert int(answer.headers["retry-after"]) >= 1
    assert client.post("/models/m/predict", json={"x": {"a": 1}}).status_code == 200
    assert client.get("/models/m").json()["seq"] == 40 * turn


def problems_in_memory() -> list[str]:
    # `isinstance` would follow a weak reference of another test, whose connection is gone.
    return [str(one) for one in gc.get_objects() if issubclass(type(one), Problem)]


def test_refused_request_leaves_no_reference_cycles(serve):
    """Nothing waits for the collector of rings, which seldom comes: bodies would with it."""
    client = serve(max_body_bytes=2**21)
    client.put("/models/m", json=SPEC)
    long = b"x" * 2**20
    bomb = zstandard.ZstdCompressor().compress(b" " * 2**24)
    packed = {"content-encoding": "zstd"}
    request = (
        ("POST", "/models/m/learn", long, {}, 400),
        ("POST", "/models/m/learn", bomb, packed | {"content-type": "text/csv"}, 413),
        ("POST", "/models/m/learn", bomb, packed, 413),
        ("POST", "/models/m/predict", b'{"x": {"1": null}}', {}, 422),
        ("POST", "/models/nobody/learn", long, {}, 404),
        ("PUT", "/models/n", long, {}, 400),
        ("POST", "/models/m/rollback", long, {"content-type": "application/json"}, 400),
        ("POST", "/models/m/labels", long, {}, 400),
    )
    gc.collect()
    gc.disable()
    try:
        for method, path, body, headers, status in request:
            answer = client.request(method, path, content=body, headers=headers)
            assert answer.status_code == status, answer.text
            # A thread that found it may hold it a moment longer than it takes to be answered.
            deadline = time.monotonic() + 60
            while (left := problems_in_memory()) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not left, (method, path, left)
    finally:
        gc.enable()


def test_the_ids_of_a_request_are_bounded(serve, monkeypatch):
    """One append looks up all of them, and the store serves no other model in that time."""
    monkeypatch.setattr("dualstream.service.models.model.MAX_KEYED_ROWS", 3)
    client = serve()
    client.put("/models/m", json={**SPEC, "algorithm": "sgd"})
    row = {"x": {"1": 1}, "y": 1}

    def learn(count: int, query: str = "", key: str | None = None, first: int = 0):
        samples = [row | {"id": str(first + k)} for k in range(count)] + [row] * 5
        headers = {} if key is None else {"idempotency-key": key}
        return client.post(f"/models/m/learn{query}", json={"samples": samples}, headers=headers)

    assert learn(3).json()["seq"] == 8
    for case in ({}, {"query": "?atomic=true"}, {"key": "a"}):
        got = assert_problem(learn(4, **case), 413, "too-many-rows")
        assert "4 rows with ids, more than 3" in got["detail"]
    lines = "y,1,id\n" + "".join(f"1,1,c{k}\n" for k in range(4))
    headers = {"content-type": "text/csv"}
    answer = client.post("/models/m/learn", content=lines, headers=headers)
    assert_problem(answer, 413, "too-many-rows")
    assert client.get("/models/m").json()["seq"] == 8  # nothing of them was learned
    assert learn(2, key="a", first=10).json()["seq"] == 15
    assert client.post("/models/m/learn", json={"samples": [row] * 9}).json()["seq"] == 24
