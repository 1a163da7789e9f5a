"""Intervals and sets in the answers of a real server: its clients, the command, tensors, topics."""

import json

import httpx
import pytest
from typer.testing import CliRunner

from dualstream.client import Client, PredictedMany
from dualstream.client.predict import _joined
from dualstream.consume.predictions import _record
from dualstream.service import cli
from tests.service.features.intervals.support import CLASSES, NUMBER, TWO, labels_of, rows

SPECS = {"number": NUMBER, "levels": NUMBER | TWO, "sets": CLASSES}
CSV = "1,4,y\n1,2,0\n0.5,,1\n"


@pytest.fixture(scope="module")
def url(shared_server):
    with Client(shared_server.url) as client:
        for name, spec in SPECS.items():
            client.create(f"intervals-{name}", spec)
            x, numbers = rows(100)
            client.learn(f"intervals-{name}", x, labels_of(spec.get("task", "binary"), numbers))
        yield shared_server.url
        for name in SPECS:
            client.delete(f"intervals-{name}")


@pytest.fixture
def client(url):
    with Client(url) as one:
        yield one


def test_joined_requests_of_one_row_have_their_intervals(url):
    x = [[one] * 5 for one in (0.0, 0.5, 1.0)]
    for name in SPECS:
        path = f"{url}/models/intervals-{name}/predict"
        many = httpx.post(path, json={"x": x}).json()
        for row, numbers in enumerate(x):
            one = httpx.post(path, json={"x": numbers}).json()
            queried = httpx.get(f"{path}?x={','.join(f'{k}:{numbers[0]}' for k in range(1, 6))}")
            assert queried.json() == one
            field = {"number": "interval", "levels": "intervals", "sets": "set"}[name]
            plural = "sets" if name == "sets" else "intervals"
            assert one[field] == many[plural][row] is not None


def test_client_reads_them_of_one_row_and_of_several_requests(client):
    x = [[one] * 5 for one in (0.0, 0.5, 1.0)]
    for name in SPECS:
        model = f"intervals-{name}"
        whole, parts = client.predict(model, x), client.predict(model, x, rows_per_request=2)
        assert whole == parts
        one = client.predict(model, x[1])
        assert one.as_many().fields_of_features() == {
            field: values[1:2] for field, values in whole.fields_of_features().items()
        }
    low, high = client.predict("intervals-number", x[1]).interval
    assert low < high
    assert set(client.predict("intervals-levels", x[1]).intervals) == {"0.5", "0.9"}
    assert set(client.predict("intervals-sets", x[1]).set) <= {"low", "mid", "high"}


def test_bodies_without_valid_rows_have_nulls():
    none = PredictedMany("m", 0, [None], [None], [None], rejected=1)
    good = PredictedMany("m", 5, [1.0], [None], None, intervals=[[0.0, 2.0]])
    joined = _joined([none, good])
    assert joined.intervals == [None, [0.0, 2.0]] and joined.scores == [None, 1.0]


def test_tables_have_columns_of_them(client):
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"1": [1.0, 0.5], "4": [2.0, 0.0]})
    numbers = client.predict("intervals-number", table)
    assert numbers.column_names == ["score", "label", "probability", "interval"]
    assert pa.types.is_list(numbers.schema.field("interval").type)
    levels = client.predict("intervals-levels", table)
    assert sorted(levels.column("intervals")[0].as_py()) == ["0.5", "0.9"]
    sets = client.predict("intervals-sets", table).column("set")
    assert sets.to_pylist() == client.predict("intervals-sets", [{1: 1, 4: 2}, {1: 0.5}]).sets


def test_command_prints_them(url, client, tmp_path):
    (tmp_path / "rows.csv").write_text(CSV)
    for name, field in {"number": "interval", "levels": "intervals", "sets": "set"}.items():
        arguments = ["predict", f"intervals-{name}", str(tmp_path / "rows.csv"), "--url", url]
        done = CliRunner().invoke(cli.app, arguments)
        assert done.exit_code == 0, done.output
        header, *lines = done.output.splitlines()
        assert header == f"score,label,probability,{field}" and len(lines) == 2
        done = CliRunner().invoke(cli.app, [*arguments, "--json"])
        values = [json.loads(line)[field] for line in done.output.splitlines()]
        plain = client.predict(f"intervals-{name}", [{1: 1, 4: 2}, {1: 0.5}])
        assert values == plain.fields_of_features()[field]
        one = CliRunner().invoke(
            cli.app,
            ["predict", f"intervals-{name}", "-x", "1=1", "-x", "4=2", "--url", url, "--json"],
        )
        assert json.loads(one.output)[field] == values[0]


def test_tensors_are_json_texts(url):
    for name, output in {"number": "intervals", "levels": "intervals", "sets": "sets"}.items():
        model = f"{url}/v2/models/intervals-{name}"
        outputs = {one["name"]: one["datatype"] for one in httpx.get(model).json()["outputs"]}
        assert outputs[output] == "BYTES"
        x = {"name": "x", "shape": [2, 5], "datatype": "FP64", "data": [1, 0, 0, 2, 0] * 2}
        answer = httpx.post(f"{model}/infer", json={"inputs": [x]}).json()
        tensors = {one["name"]: one["data"] for one in answer["outputs"]}
        assert set(tensors) == set(outputs)
        plain = httpx.post(
            f"{url}/models/intervals-{name}/predict", json={"x": [[1, 0, 0, 2, 0]] * 2}
        )
        assert [json.loads(text) for text in tensors[output]] == plain.json()[output]


def test_predictions_on_topics_have_them():
    answer = PredictedMany("m", 1, [0.5], [None], None, intervals=[[0.0, None]])
    record = _record(answer, answer.fields_of_features(), 0, b'"a"')
    assert json.loads(record.value) == {
        "id": "a", "score": 0.5, "label": None, "interval": [0.0, None], "model": "m", "seq": 1
    }  # fmt: skip
