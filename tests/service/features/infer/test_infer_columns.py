"""POST /columns/infer proposes what `dualstream infer` does, within limits, and creates nothing."""

import json

import pytest
from typer.testing import CliRunner

from dualstream.service.cli import app
from dualstream.service.features.infer.routes import MAX_BYTES, MAX_COLUMNS
from tests.service.codecs.flat_tables import as_arrow, as_csv, generated
from tests.service.codecs.support import ARROW, CSV, NDJSON
from tests.service.conftest import assert_problem

TSV = "text/tab-separated-values"


def post(client, body, kind=CSV, **query):
    return client.post("/columns/infer", content=body, headers={"content-type": kind}, params=query)


def test_every_format_gives_the_proposal_of_the_command(client, tmp_path):
    rows = generated(2, 80)
    bodies = {
        "rows.csv": (CSV, as_csv(rows)),
        "rows.ndjson": (NDJSON, "\n".join(map(json.dumps, rows)).encode()),
        "rows.json": ("application/json", json.dumps(rows).encode()),
        "rows.arrows": (ARROW, as_arrow(rows)),
    }
    for name, (kind, body) in bodies.items():
        (tmp_path / name).write_bytes(body)
        shown = CliRunner().invoke(app, ["infer", str(tmp_path / name), "--json"])
        assert shown.exit_code == 0, shown.output
        got = post(client, body, kind)
        assert got.status_code == 200 and got.json() == json.loads(shown.stdout)
    result = got.json()
    assert result["rows"] == 80 and result["spec"]["columns"]["label"] == "clicked"
    assert client.get("/models").json()["models"] == []
    made = client.put("/models/m", json=result["spec"])
    assert made.status_code == 201
    learned = client.post("/models/m/learn", json=rows).json()
    assert learned["learned"] == 80


def test_label_task_and_delimiter_are_parameters(client):
    body = "a;b;c\n" + "".join(f"{n % 3};{n / 2};{'xy'[n % 2]}\n" for n in range(30))
    kind = f"{CSV}; delimiter=%3B"
    spec = post(client, body, kind, label="b").json()["spec"]
    assert spec["task"] == "regression" and spec["columns"]["label"] == "b"
    spec = post(client, body.replace(";", "\t"), TSV, label="a", task="multiclass").json()["spec"]
    assert spec["task"] == "multiclass" and set(spec["columns"]["types"]) == {"b", "c"}
    columns = {one["name"]: one for one in post(client, body, kind).json()["columns"]}
    assert columns["c"]["type"] == "label" and "only column of two values" in columns["c"]["reason"]


@pytest.mark.parametrize(
    ("body", "kind", "query", "status", "reason"),
    [
        (b"", CSV, {}, 422, "no rows"),
        (b"a,b\n", CSV, {}, 422, "no rows"),
        (b"a,a\n1,2\n", CSV, {}, 422, "duplicated"),
        (b"a,b\n1,2\n3,4\n", CSV, {}, 422, "name one as `label`"),
        (b"a,b\n1,2\n3,4\n", CSV, {"label": "z"}, 422, "there is no column 'z'"),
        (b"a,b\n1,2\n3,4\n5,6\n", CSV, {"label": "a", "task": "binary"}, 422, "has two"),
        (b"[1, 2", "application/json", {}, 422, "invalid JSON"),
        (b'{"x": {"a": 1}, "y": 1}\n', NDJSON, {}, 422, "name their features `x`"),
        (b"1 1:1\n", "text/x-libsvm", {}, 422, "has no columns"),
        (b"not arrow", ARROW, {}, 422, "the sample"),
        (b"a\n1\n", f"{CSV}; charset=latin1", {}, 415, "send UTF-8"),
    ],
)
def test_a_sample_without_a_proposal_says_why(client, body, kind, query, status, reason):
    slug = "unsupported-media-type" if status == 415 else "invalid-body"
    problem = assert_problem(post(client, body, kind, **query), status, slug)
    assert reason in problem["detail"]


def test_a_sample_is_bounded(client):
    assert_problem(post(client, b"a" * (MAX_BYTES + 1)), 413, "body-too-large")
    wide = {f"c{n}": n for n in range(MAX_COLUMNS)} | {"y": 1}
    problem = assert_problem(post(client, json.dumps(wide), NDJSON), 422, "invalid-body")
    assert "1,001 columns; the limit is 1,000" in problem["detail"]
    wide |= {f"c{n}": n for n in range(10_000)}
    problem = assert_problem(post(client, json.dumps(wide), NDJSON), 422, "invalid-body")
    assert "the row has more than 10,000 columns" in problem["detail"]
    assert_problem(post(client, b"a,y\n1,1\n", task="ranking"), 422, "invalid-query")
    # Columns that do not fit are ignored one by one, each row is read once.
    rows = [{"y": n % 2} | {f"c{c}": c + n for c in range(MAX_COLUMNS - 1)} for n in range(40)]
    result = post(client, "\n".join(map(json.dumps, rows)), NDJSON).json()
    assert len(result["columns"]) == MAX_COLUMNS
