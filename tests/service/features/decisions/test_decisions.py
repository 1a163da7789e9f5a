"""Costs and alerts of a served model: answers, metrics, late labels, restarts."""

import io
import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest
from typer.testing import CliRunner

from dualstream.client import Client
from dualstream.consume.predictions import _record
from dualstream.service import cli
from dualstream.solvers.evaluation.decisions.alerts import WARM_UP
from tests.service.conftest import assert_problem
from tests.service.replay.replay_support import replayed

DIM = 5
FEATURES = {"features": {"kind": "indexed", "dim": DIM}}
SPEC = {
    "labels": ["ok", "fraud"],
    "costs": {"false_positive": 1, "false_negative": 9},
    "alert_rate": 0.1,
    **FEATURES,
}
MANY = 300


def rows_of(n: int, seed: int = 0) -> tuple[list[list[float]], list[str]]:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, DIM)).round(3)
    is_fraud = x[:, 0] + draw.normal(size=n) > 1.5
    return x.tolist(), np.where(is_fraud, "fraud", "ok").tolist()


@pytest.fixture
def trained(serve):
    client = serve()
    assert client.put("/models/m", json=SPEC).status_code == 201
    x, y = rows_of(MANY)
    assert client.post("/models/m/learn", json={"x": x, "y": y}).json()["learned"] == MANY
    return client


def check(score, label, probability, alert, threshold) -> None:
    assert label == ("fraud" if probability >= 0.1 else "ok")
    assert alert is (score > threshold)


def one_of(answer: dict) -> tuple:
    return tuple(answer[name] for name in ("score", "label", "probability", "alert", "threshold"))


def test_answers_of_one_row(trained):
    row = {"x": [2.0, 0, 0, 0, 0]}
    answers = [
        trained.post("/models/m/predict", json=row).json(),
        trained.get("/models/m/predict?x=1:2").json(),
        trained.get("/predict?model=m&x=1:2").json(),
        trained.post("/models/m/predict?remember=true", json=row | {"id": "a"}).json(),
    ]
    for answer in answers:
        check(*one_of(answer))
        assert one_of(answer) == one_of(answers[0])
    assert answers[0]["alert"] and answers[0]["label"] == "fraud"
    low = trained.post("/models/m/predict", json={"x": [-2.0, 0, 0, 0, 0]}).json()
    assert (low["alert"], low["label"]) == (False, "ok")


def test_answers_of_many_rows_in_every_format(trained):
    x, _ = rows_of(50, seed=1)
    body = {"x": [*x, [1, 2]]}
    many = trained.post("/models/m/predict", json=body).json()
    for row in zip(*(many[n][:-1] for n in FIELDS), strict=True):
        check(*row)
    assert [many[name][-1] for name in FIELDS] == [None] * len(FIELDS)
    assert 0 < sum(many["alerts"][:-1]) < 25
    table = pa.table({str(at + 1): [row[at] for row in x] for at in range(DIM)})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    lines = "\n".join(json.dumps({"x": row}) for row in x)
    for kind, content in (
        ("application/x-ndjson", lines.encode()),
        ("application/vnd.apache.arrow.stream", sink.getvalue()),
        ("application/json", json.dumps({"samples": [{"x": row} for row in x]}).encode()),
    ):
        answer = trained.post(
            "/models/m/predict", content=content, headers={"content-type": kind}
        ).json()
        assert [answer[name] for name in FIELDS] == [many[name][:-1] for name in FIELDS], kind


FIELDS = ("scores", "labels", "probabilities", "alerts", "thresholds")


def test_open_inference_has_labels_and_alerts(trained):
    x, _ = rows_of(30, seed=2)
    assert trained.put("/models/new", json=SPEC).status_code == 201
    one = {"name": "x", "shape": [1, DIM], "datatype": "FP64", "data": [1.0] * DIM}
    fresh = trained.post("/v2/models/new/infer", json={"inputs": [one]}).json()["outputs"]
    first = {one["name"]: one["data"] for one in fresh}
    assert first["alerts"] == [False] and first["thresholds"] == [sys.float_info.max]
    many = trained.post("/models/m/predict", json={"x": x}).json()
    flat = [value for row in x for value in row]
    tensor = {"name": "x", "shape": [30, DIM], "datatype": "FP64", "data": flat}
    answer = trained.post("/v2/models/m/infer", json={"inputs": [tensor]}).json()
    outputs = {one["name"]: one["data"] for one in answer["outputs"]}
    assert outputs["labels"] == many["labels"]
    assert outputs["alerts"] == many["alerts"] and outputs["thresholds"] == many["thresholds"]
    listed = trained.get("/v2/models/m").json()["outputs"]
    assert {"name": "alerts", "datatype": "BOOL", "shape": [-1]} in listed


def test_mistakes_stay_by_the_sign_of_the_score(trained):
    x = (np.linspace(0, 3, 40)[:, None] * [1, 0, 0, 0, 0]).tolist()
    many = trained.post("/models/m/predict", json={"x": x}).json()
    row = next(
        row
        for row, label, score in zip(x, many["labels"], many["scores"], strict=True)
        if label == "fraud" and score < 0
    )
    answer = trained.post("/models/m/learn", json={"x": row, "y": "ok"}).json()
    assert answer["mistakes"] == 0


def test_metrics_show_costs_and_rates(trained):
    metrics = trained.get("/models/m/metrics").json()
    costs, alerts = metrics["costs"]["since_start"], metrics["alerts"]
    assert costs["rows"] == MANY
    assert costs["cost"] < costs["most_probable"]
    assert alerts["target_rate"] == 0.1
    since_start = alerts["since_start"]
    assert since_start["rows"] == MANY - WARM_UP
    assert abs(since_start["alerts"] - 0.1 * since_start["rows"]) < 12
    assert since_start["precision"] > 0.3
    assert alerts["alerts_a_day"] is None
    assert alerts["answered"] == {"rows": 0, "alerts": 0, "rate": None}
    x, _ = rows_of(100, seed=4)
    many = trained.post("/models/m/predict", json={"x": x}).json()
    trained.post("/models/m/learn", json={"x": x[0], "y": "ok"})
    answered = trained.get("/models/m/metrics").json()["alerts"]["answered"]
    count = sum(many["alerts"])
    assert answered == {"rows": 100, "alerts": count, "rate": count / 100}
    rolling = trained.get("/models/m/metrics").json()["alerts"]["rolling"]
    series = trained.get("/models/m/trends").json()["series"]
    trends = {one["name"]: one["values"][-1] for one in series}
    for name in ("rate", "precision", "recall"):
        assert trends[f"alert_{name}"] == pytest.approx(rolling[name])
    text = trained.get("/metrics").text
    assert f'dualstream_alert_rows_total{{model="m"}} {MANY + 1 - WARM_UP}.0' in text
    for name in ("alert_threshold", "alerts_total", "alert_precision", "alert_recall"):
        assert f'dualstream_{name}{{model="m"}}' in text
    assert 'dualstream_decision_cost{decision="least_cost",model="m"}' in text


def test_plain_model_has_no_fields(client):
    client.put("/models/p", json=FEATURES)
    client.post("/models/p/learn", json={"x": [1, 0, 0, 0, 0], "y": 1})
    answer = client.post("/models/p/predict", json={"x": [1, 0, 0, 0, 0]}).json()
    assert not answer.keys() & {"alert", "threshold"}
    assert not client.get("/models/p/metrics").json().keys() & {"alerts", "costs"}
    assert 'alert_rows_total{model="p"}' not in client.get("/metrics").text


def state_of(client) -> tuple:
    answer = client.post("/models/m/predict", json={"x": [[1, 1, 0, 0, 0]] * 2}).json()
    return client.get("/models/m?digest=true").json()["state_digest"], answer


def test_restart_replay_and_single_rows_give_the_same_bits(serve):
    client = serve(snapshot_every=100)
    x, y = rows_of(MANY)
    for model in ("m", "single"):
        assert client.put(f"/models/{model}", json=SPEC).status_code == 201
    client.post("/models/m/learn", json={"x": x, "y": y})
    for row, label in zip(x, y, strict=True):
        client.post("/models/single/learn", json={"x": row, "y": label})
    whole = client.get("/models/m/metrics").json()
    single = client.get("/models/single/metrics").json()
    assert whole["alerts"] == single["alerts"] and whole["costs"] == single["costs"]
    states = [client.get(f"/models/{m}?digest=true").json() for m in ("m", "single")]
    assert states[0]["state_digest"] == states[1]["state_digest"]
    assert state_of(serve(snapshot_every=100)) == state_of(client)


def test_replay_shows_what_others_had_done(serve, store):
    client = serve(store=store)
    others = {"alert_rate": 0.3, "costs": {"false_positive": 2.0, "false_negative": 3.0}}
    x, y = rows_of(MANY)
    for model, fields in (("m", {}), ("others", others)):
        assert client.put(f"/models/{model}", json=SPEC | fields).status_code == 201
        client.post(f"/models/{model}/learn", json={"x": x, "y": y})
    changes = [
        *("--set", "alert_rate=0.3", "--set", 'intervals={"coverage": 0.8}'),
        *("--set", "costs.false_positive=2", "--set", "costs.false_negative=3"),
    ]
    metrics = replayed(store, *changes)["metrics"]
    wanted = client.get("/models/others/metrics").json()
    assert metrics["alerts"] == wanted["alerts"] and metrics["costs"] == wanted["costs"]
    assert metrics["intervals"][0]["rows"] > 0
    said = CliRunner().invoke(cli.app, ["replay", "m", "--store", store, *changes]).output
    for name in ("alerts", "costs", "intervals"):
        assert f"\n{name}: " in said


def test_rollback_takes_back_the_threshold(trained):
    before = state_of(trained)
    assert trained.post("/models/m/versions", json={"name": "v"}).status_code == 201
    x, y = rows_of(100, seed=9)
    trained.post("/models/m/learn", json={"x": x, "y": y})
    at_version = trained.post("/models/m/predict?version=v", json={"x": [[1, 1, 0, 0, 0]] * 2})
    assert at_version.json()["thresholds"] == before[1]["thresholds"]
    assert state_of(trained)[1]["thresholds"] != before[1]["thresholds"]
    assert trained.post("/models/m/rollback", json={"version": "v"}).status_code == 200
    assert state_of(trained)[1]["thresholds"] == before[1]["thresholds"]


def test_late_label_moves_the_threshold_by_the_score_that_was_served(trained):
    before = trained.get("/models/m/metrics").json()["alerts"]["since_start"]
    row = {"x": [3.0, 0, 0, 0, 0], "id": "late"}
    served = trained.post("/models/m/predict?remember=true", json=row).json()
    assert served["alert"]
    at = trained.get("/models/m/metrics").json()["alerts"]["since_start"]
    assert at == before  # a row that waits is not journalled
    trained.post("/models/m/labels", json={"id": "late", "y": "fraud"})
    after = trained.get("/models/m/metrics").json()["alerts"]["since_start"]
    assert after["rows"] == before["rows"] + 1
    assert after["alerts"] == before["alerts"] + 1
    assert after["labelled"] == before["labelled"] + 1


def test_classes_are_decided_by_cost(serve):
    client = serve()
    spec = {"task": "multiclass", "costs": {"fire": {"calm": 1e6}}, **FEATURES}
    assert client.put("/models/c", json=spec).status_code == 201
    draw = np.random.default_rng(1)
    x = draw.normal(size=(200, DIM))
    y = np.where(x[:, 0] > 1.2, "fire", np.where(x[:, 1] > 0.5, "smoke", "calm")).tolist()
    client.post("/models/c/learn", json={"x": x.tolist(), "y": y})
    many = client.post("/models/c/predict", json={"x": x[:50].tolist()}).json()
    plain = client.put("/models/p", json={"task": "multiclass", **FEATURES})
    assert plain.status_code == 201
    client.post("/models/p/learn", json={"x": x.tolist(), "y": y})
    probable = client.post("/models/p/predict", json={"x": x[:50].tolist()}).json()
    assert many["scores"] == probable["scores"]
    assert many["labels"].count("calm") < probable["labels"].count("calm")
    assert "alerts" not in many
    row = {"x": x[0].tolist(), "id": "late"}
    assert client.post("/models/c/predict?remember=true", json=row).json()["remembered"] == 1
    client.post("/models/c/labels", json={"id": "late", "y": "calm"})
    costs = client.get("/models/c/metrics").json()["costs"]
    assert costs["since_start"]["rows"] == 201
    assert costs["unseen_classes"] == []


def test_wrong_fields_are_refused_with_their_names(client):
    for spec, field in (
        ({"costs": {"false_positive": -2}}, "costs.false_positive"),
        ({"alert_rate": 1.5}, "alert_rate"),
        ({"costs": {"false_positve": 2}}, "false_positve"),
        ({"alert_rate": 0.1, "task": "regression"}, "alert_rate"),
    ):
        problem = assert_problem(client.put("/models/m", json=spec), 422, "invalid-spec")
        assert field in problem["detail"]


def test_clients_commands_and_topics_have_the_fields(shared_server, tmp_path):
    with Client(shared_server.url) as client:
        client.create("decided", SPEC)
        x, y = rows_of(MANY)
        features = [{str(at + 1): value for at, value in enumerate(row)} for row in x]
        client.learn("decided", features, y)
        one = client.predict("decided", features[0])
        check(one.score, one.label, one.probability, one.alert, one.threshold)
        many = client.predict("decided", features[:9])
        fields = many.fields_of_features()
        assert list(fields) == ["alert", "threshold"]
        assert fields["alert"][0] == one.alert and len(fields["threshold"]) == 9
        lines = [",".join(map(str, row)) for row in x[:9]]
        (tmp_path / "rows.csv").write_text("\n".join(["1,2,3,4,5", *lines]) + "\n")
        command = ["predict", "decided", str(tmp_path / "rows.csv"), "--url", shared_server.url]
        header, *printed = CliRunner().invoke(cli.app, command).output.splitlines()
        assert header == "score,label,probability,alert,threshold" and len(printed) == 9
        answers = [
            json.loads(line)
            for line in CliRunner().invoke(cli.app, [*command, "--json"]).output.splitlines()
        ]
        assert [{name: line[name] for name in fields} for line in answers] == [
            dict(zip(fields, row, strict=True)) for row in zip(*fields.values(), strict=True)
        ]
        records = [_record(many, fields, row, b'"a"') for row in range(9)]
        topic = [json.loads(record.value) for record in records]
        assert [value["alert"] for value in topic] == fields["alert"]
        assert [value["threshold"] for value in topic] == fields["threshold"]
        client.delete("decided")


def test_segments_have_their_alert_rates(serve):
    client = serve()
    spec = {
        "columns": {"types": {"country": "category", "amount": "number"}},
        "segments": ["country"],
        "alert_rate": 0.1,
        "algorithm": "sgd",
        "loss": "logistic",
    }
    assert client.put("/models/s", json=spec).status_code == 201
    draw = np.random.default_rng(2)
    rows = [
        {"country": country, "amount": amount, "y": int(amount > 1)}
        for country, amount in zip(
            draw.choice(["DE", "FR"], 600).tolist(), draw.normal(size=600).tolist(), strict=True
        )
    ]
    for row in rows[::2]:
        row["amount"] += 1.0 if row["country"] == "FR" else 0.0
    client.post("/models/s/learn", json=rows)
    view = client.get("/models/s/metrics?by=country").json()["since_start"]
    rates = {one["value"]: one["alert_rate"] for one in view}
    alerts = client.get("/models/s/metrics").json()["alerts"]["since_start"]
    assert rates["(all)"] == alerts["alerts"] / 600
    assert rates["FR"] > rates["DE"] > 0
