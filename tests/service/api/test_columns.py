"""Models with `columns`: flat rows through every door, and the same model whichever it was."""

import json
import random

import httpx
import pyarrow as pa
import pytest

from dualstream.client import Client
from dualstream.service.cli.demo.server_process import ServerProcess
from tests.service.codecs.flat_tables import SPEC, as_arrow, as_csv, generated, written
from tests.service.codecs.support import ARROW, CSV, NDJSON
from tests.service.conftest import assert_problem

LINEAR = SPEC | {"algorithm": "sgd", "scaling": "balanced"}


def digest(client, model):
    got = client.get(f"/models/{model}?digest=true").json()
    return got["samples"], got["state_digest"]


def test_every_format_makes_the_same_model(serve, store):
    client = serve(store=store)
    rows = generated(3, 60)
    lines = "\n".join(map(json.dumps, rows))
    bodies = {
        "json": ("application/json", json.dumps(rows).encode()),
        "ndjson": (NDJSON, lines.encode()),
        "csv": (CSV, as_csv(rows)),
        "arrow": (ARROW, as_arrow(rows)),
    }
    digests, scores = set(), set()
    for name, (kind, body) in bodies.items():
        assert client.put(f"/models/{name}", json=LINEAR).status_code == 201
        headers = {"content-type": kind}
        first = client.post(f"/models/{name}/learn", content=body, headers=headers).json()
        assert (first["learned"], first["rejected"]) == (60, 0)
        again = client.post(f"/models/{name}/learn", content=body, headers=headers).json()
        assert again["learned"] == 0 and len(again["duplicates"]) == 60
        digests.add(digest(client, name))
        got = client.post(f"/models/{name}/predict", content=body, headers=headers).json()
        scores.add(tuple(got["scores"]))
    assert len(digests) == len(scores) == 1
    one = client.get("/models/csv/predict", params={"x.site": "news", "x.price": "2"}).json()
    same = client.post("/models/csv/predict", json={"site": "news", "price": 2}).json()
    explicit = client.post("/models/csv/predict", json={"x": {"site": "news", "price": 2}}).json()
    assert one["score"] == same["score"] == explicit["score"]


def test_a_body_with_ids_is_its_rows_one_by_one(serve, store):
    client = serve(store=store)
    rows = generated(5, 60)
    lines = "\n".join(map(json.dumps, rows)).encode()
    for model in ("rows", "body"):
        assert client.put(f"/models/{model}", json=LINEAR).status_code == 201
    for row in rows:
        assert client.post("/models/rows/learn", json=row).json()["learned"] == 1
    client.post("/models/body/learn", content=lines, headers={"content-type": NDJSON})
    assert digest(client, "rows") == digest(client, "body")


@pytest.mark.parametrize("missing", ["999", 999, "-1.5"])
def test_a_number_is_missing_in_every_format(client, missing):
    """Also where it is given as a text."""
    sent = json.loads(str(missing))
    texts = [{"y": 1, "a": str(sent), "b": "x"}, {"y": 0, "a": "2", "b": str(sent)}] * 100
    numbers = [{"y": 1, "a": sent, "b": "x"}, {"y": 0, "a": 2, "b": sent}] * 100
    bodies = {
        "lines": (NDJSON, "\n".join(map(json.dumps, texts))),
        "numbers": (NDJSON, "\n".join(map(json.dumps, numbers))),
        "csv": (CSV, "y,a,b\n" + "\n".join(f"{one['y']},{one['a']},{one['b']}" for one in texts)),
        "list": ("application/json", json.dumps(numbers)),
    }
    names = []
    spec = {"algorithm": "sgd", "columns": {"missing": [missing]}}
    for model, (kind, body) in bodies.items():
        client.put(f"/models/{model}", json=spec)
        headers = {"content-type": kind}
        assert client.post(f"/models/{model}/learn", content=body, headers=headers).is_success
        weights = client.get(f"/models/{model}/weights").json()["weights"]
        names.append(sorted((one["name"], one["weight"]) for one in weights))
    assert [name for name, _ in names[0]] == ["a", "b=x"]
    assert all(one == names[0] for one in names)


def test_refused_rows_count_for_a_column_in_any_normal_form(client):
    client.put(
        "/models/m", json={"algorithm": "sgd", "columns": {"types": {"caf\u00e9": "number"}}}
    )
    for name in ("caf\u00e9", "cafe\u0301"):
        client.post("/models/m/learn", json={"y": 1, name: "x"})
    (column,) = client.get("/models/m/columns").json()["columns"]
    assert column["refused"] == 2


@pytest.mark.parametrize("seed", range(6))
def test_rows_left_out_change_no_order_of_names(serve, store, seed):
    """Ids are repeated, so rows are left out. Bodies above 4 KiB are read by kernels."""
    client, chance = serve(store=store), random.Random(seed)
    names = "abcdefgh"
    rows = []
    for _ in range(12):
        used = chance.sample(names, chance.randint(1, 5))
        row = {"y": 1, **{name: chance.choice([0, 1, "x"]) for name in used}}
        rows.append(row | ({"id": chance.randrange(4)} if chance.random() < 0.7 else {}))
    long = [row | {"filler": "-" * 1000} for row in rows]
    bodies = {
        "rows": [("application/json", json.dumps(row)) for row in rows],
        "halves": [("application/json", json.dumps(half)) for half in (long[:6], long[6:])],
        "list": [("application/json", json.dumps(rows))],
        "long": [("application/json", json.dumps(long))],
        "lines": [(NDJSON, "\n".join(map(json.dumps, long)))],
    }
    spec = {"algorithm": "sgd", "columns": {"id": "id", "ignore": ["filler"]}}
    for model, parts in bodies.items():
        assert client.put(f"/models/{model}", json=spec).status_code == 201
        for kind, body in parts:
            client.post(f"/models/{model}/learn", content=body, headers={"content-type": kind})
    assert len({digest(client, model) for model in bodies}) == 1


@pytest.mark.parametrize("filler", [0, 200])
def test_an_id_of_another_sample_is_named_where_it_was_sent(client, filler):
    """Short bodies and long ones, which kernels read."""
    rows = [{"y": 1, "a": n, "meta": {"id": f"e{n}"}} for n in range(filler + 2)]
    whole = [{"y": 1, "a": row["a"], "meta.id": row["meta"]["id"]} for row in rows]
    table = as_csv(whole)
    stream = pa.table({name: [row[name] for row in whole] for name in whole[0]})
    structs = pa.Table.from_pylist(rows)
    bodies = {
        "/1/meta/id": ("application/json", json.dumps(rows).encode()),
        "/samples/1/meta/id": ("application/json", json.dumps({"samples": rows}).encode()),
        "/1/meta.id": ("application/json", json.dumps(whole).encode()),
        "/meta/id": (NDJSON, "\n".join(map(json.dumps, rows)).encode()),
        "/meta.id": (CSV, table),
        "/meta.id ": (ARROW, written(stream)),
        "/meta/id ": (ARROW, written(structs)),
    }
    client.put("/models/m", json={"algorithm": "sgd", "columns": {"id": "meta.id"}})
    client.post("/models/m/learn", json={"y": 0, "a": 9, "meta": {"id": "e1"}})
    client.post("/models/m/learn", json=[row for row in rows if row["a"] != 1])
    for pointer, (kind, body) in bodies.items():
        got = client.post("/models/m/learn", content=body, headers={"content-type": kind}).json()
        results = [(one["index"], one["pointer"]) for one in got["errors"]]
        assert results == [(1, pointer.strip())], pointer


def test_an_id_column_may_have_braces(client):
    client.put("/models/m", json={"algorithm": "sgd", "columns": {"id": "k{x}"}})
    for a in (1, 2):
        rows = [{"y": 1, "k{x}": "e"}, {"y": 1, "a": a, "k{x}": 7}]
        got = client.post("/models/m/learn", json=rows)
    assert [one["pointer"] for one in got.json()["errors"]] == ["/1/k{x}"]


def test_a_row_left_out_takes_no_names_from_later_rows(serve, store):
    client = serve(store=store)
    rows = generated(6, 60)
    lines = "\n".join(map(json.dumps, rows)).encode()
    weights = []
    for model, body in (("all", lines), ("others", lines.partition(b"\n")[2])):
        assert client.put(f"/models/{model}", json=LINEAR).status_code == 201
        client.post(f"/models/{model}/learn", json={"clicked": 1, "event": "e0", "score": 7})
        answer = client.post(
            f"/models/{model}/learn", content=body, headers={"content-type": NDJSON}
        ).json()
        assert answer["learned"] == 59
        weights.append(client.get(f"/models/{model}/weights?top=1000").json()["weights"])
    assert weights[0] == weights[1] and all(one["name"] for one in weights[0])


def test_a_restart_and_late_labels_keep_the_columns(serve, store):
    client = serve(store=store)
    client.put("/models/m", json=LINEAR)
    client.put("/models/late", json=LINEAR)
    rows = [row | {"weight": 1} for row in generated(4, 30)]
    for row in rows:
        row["cost"] = 1.0
    for row in rows:  # each moves the newest time, from which ages are measured
        answer = client.post("/models/late/predict?remember=true", json=row)
        assert answer.status_code == 200 and answer.json()["remembered"] == 1, answer.text
    labels = [{"id": row["event"], "y": row["clicked"]} for row in rows]
    assert client.post("/models/late/labels", json={"labels": labels}).json()["learned"] == 30
    client.post("/models/m/learn", json=rows)
    weights = [client.get(f"/models/{m}/weights?top=1000").json()["weights"] for m in ("m", "late")]
    assert weights[0] == weights[1] and len(weights[0]) > 50
    assert {"site*at.hour", "zip*member"} <= {
        one["name"].partition("=")[0] for one in weights[0] if one["name"]
    }
    before = digest(client, "m")
    other = serve(store=store)
    assert digest(other, "m") == before
    assert other.get("/models/m").json()["spec"]["columns"]["label"] == "clicked"


def test_bad_rows_and_specifications_are_refused_by_name(client):
    assert client.put("/models/m", json=LINEAR).status_code == 201
    rows = generated(5, 4)
    rows[1]["price"] = "cheap"
    del rows[2]["clicked"]
    got = client.post("/models/m/learn", json=rows).json()
    assert got["learned"] == 2
    assert [(one["index"], one["pointer"]) for one in got["errors"]] == [
        (1, "/1/price"),
        (2, "/2/clicked"),
    ]
    metrics = client.get("/metrics").text
    for column in ("price", "clicked"):
        name = f'dualstream_refused_column_rows_total{{column="{column}",model="m"}}'
        assert f"{name} 1.0" in metrics
    whole = client.post("/models/m/learn?atomic=true", json=rows)
    assert_problem(whole, 422, "invalid-rows")
    libsvm = client.post(
        "/models/m/learn", content=b"1 1:1\n", headers={"content-type": "text/x-libsvm"}
    )
    assert_problem(libsvm, 415, "unsupported-media-type")
    query = client.get("/models/m/predict?x=1:1")
    assert "x.NAME=VALUE" in assert_problem(query, 422, "invalid-query")["detail"]
    bad = client.put("/models/n", json={"columns": {"types": {"a": "numbr"}}, "crosses": [["a"]]})
    result = assert_problem(bad, 422, "invalid-spec")["errors"]
    assert {one["pointer"] for one in result} == {"/columns/types/a", "/crosses/0"}
    member = client.put("/models/n", json={"members": [{"algorithm": "sgd", "columns": {}}]})
    assert_problem(member, 422, "invalid-spec")


def test_inference_lists_the_columns_and_takes_them(client):
    client.put("/models/m", json=LINEAR)
    client.post("/models/m/learn", json=generated(6, 20))
    inputs = client.get("/v2/models/m").json()["inputs"]
    assert {one["name"]: one["datatype"] for one in inputs} == {
        "price": "FP64",
        "zip": "BYTES",
        "member": "BOOL",
        "subject": "BYTES",
        "at": "BYTES",
    }
    fields = {"price": ("FP64", 2.0), "zip": ("BYTES", "02134"), "at": ("BYTES", "2024-01-01")}
    tensors = [
        {"name": name, "datatype": kind, "shape": [1], "data": [value]}
        for name, (kind, value) in fields.items()
    ]
    got = client.post("/v2/models/m/infer", json={"inputs": tensors}).json()
    row = {name: value for name, (_, value) in fields.items()}
    same = client.post("/models/m/predict", json=row).json()
    assert got["outputs"][0]["data"] == [same["score"]]


@pytest.mark.parametrize("task", ["regression", "multiclass"])
def test_labels_of_other_tasks(client, task):
    spec = {"task": task, "members": "eight" if task == "multiclass" else "ten"}
    client.put("/models/m", json=spec | {"columns": {"label": "out"}})
    rows = [{"out": n % 3, "a": n % 5, "b": "x"} for n in range(30)]
    assert client.post("/models/m/learn", json=rows).json()["learned"] == 30
    out = "a,b,out\n" + "".join(f"{row['a']},x,{row['out']}\n" for row in rows)
    again = client.post("/models/m/learn", content=out, headers={"content-type": CSV}).json()
    assert again["learned"] == 30 and again["mistakes"] is not None or task == "regression"


AGED = {"types": {"at": {"kind": "time", "parts": ["age"]}}}
HOURS = [n + late for n, late in enumerate([0, -5, 0, -1, 0, -9, -30, 0] * 8)]
TIMED = [{"at": 1_700_000_000 + 3600 * h, "a": h % 3, "y": int(h % 4 < 2)} for h in HOURS]


def test_a_killed_server_measures_ages_from_the_same_time(tmp_path):
    store = f"sqlite:///{tmp_path / 'store.db'}"
    requests = [{"at": TIMED[-1]["at"] + 3600 * hours} for hours in (-400, -2, 0, 1000)]
    answers = []
    for n in range(2):
        server = ServerProcess(store, ["--snapshot-every", "40"])
        try:
            with httpx.Client(base_url=server.url, timeout=60) as http:
                if n == 0:
                    http.put("/models/m", json={"members": "eight", "columns": AGED})
                    for rows in (TIMED[:50], TIMED[50:]):
                        assert not http.post("/models/m/learn", json=rows).json()["rejected"]
                answer = http.post("/models/m/predict", json=requests).json()
                answers.append((answer, digest(http, "m")))
        finally:
            server.kill()
    assert answers[0] == answers[1]
    old, late, newest, future = answers[0][0]["scores"]
    assert len({old, late, newest}) == 3 and newest == future


def test_what_is_shown_of_an_age_and_what_is_refused(client):
    for name in ("m", "dual"):
        spec = {"algorithm": "dual_ascent"} if name == "dual" else {"members": "eight"}
        assert client.put(f"/models/{name}", json=spec | {"columns": AGED}).status_code == 201
        client.post(f"/models/{name}/learn", json=[TIMED[0] | {"id": "first"}, *TIMED[1:]])
    [at] = [one for one in client.get("/models/m/columns").json()["columns"] if one["name"] == "at"]
    assert (at["kind"], at["mean"], at["last"], at["psi"]) == ("time", None, None, None)
    for one in ("m", "dual"):
        weights = client.get(f"/models/{one}/weights").json()["weights"]
        assert "at.age" in {weight["name"] for weight in weights}
        row = {"at": TIMED[0]["at"], "a": 1}
        parts = client.post(f"/models/{one}/predict?explain=true", json=row).json()["explanation"]
        assert {part["name"] for part in parts["contributions"]} == {"a", "at.age"}
    member = client.get("/models/m/members").json()["members"][1]["name"]
    for path in ("dual/export?", "m/export?", f"m/export?member={member}&"):
        for format_ in ("json", "onnx", "vw"):
            refused = client.get(f"/models/{path}format={format_}")
            assert "part `age`" in assert_problem(refused, 409, "not-exportable")["detail"]
    gone = client.delete("/models/dual/samples/first")
    assert "`age`" in assert_problem(gone, 409, "cannot-unlearn")["detail"]


def test_the_client_and_the_default_model_take_flat_rows(tmp_path):
    store = f"sqlite:///{tmp_path / 'store.db'}"
    with ServerProcess(store) as server, Client(server.url) as client:
        client.create("flat", {"columns": {"types": {"at": "time"}}})
        answer = client.learn("flat", {"at": "2024-01-01T10:00", "site": "news"}, 1)
        assert answer.learned == 1
        assert client.predict("flat", {"at": "2024-01-01T10:00", "site": "news"}).score > 0.0
