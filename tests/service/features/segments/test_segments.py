"""GET /models/{id}/metrics?by=COLUMN on a running application."""

import random
from collections import defaultdict

import pytest
from typer.testing import CliRunner

from dualstream.service import cli
from tests.service.conftest import assert_problem
from tests.service.replay.replay_support import replayed

TYPES = {"country": "category", "device": "category", "member": "boolean", "price": "number"}
SPEC = {
    "columns": {"types": TYPES},
    "segments": ["country", "member"],
    "algorithm": "sgd",
    "loss": "logistic",
}
FAILING = "GR"


def rows(n, seed=0, fails=FAILING):
    """The label is known by the price and the device, but in one country it is the contrary."""
    draw = random.Random(seed)
    results = []
    for _ in range(n):
        row = {"price": draw.gauss(0.0, 1.0), "device": draw.choice("ab")}
        row["country"] = draw.choice(("DE", "DE", "DE", "FR", "FR", FAILING, None))
        row["member"] = draw.random() < 0.3
        is_positive = row["price"] + (row["device"] == "a") > 0.5
        results.append(row | {"y": int(is_positive != (row["country"] == fails))})
    return results


def learn(client, some, model="m", **query):
    answer = client.post(f"/models/{model}/learn", json=some, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def by(client, column, model="m"):
    answer = client.get(f"/models/{model}/metrics", params={"by": column})
    assert answer.status_code == 200, answer.text
    return answer.json()


def digest(client, model="m"):
    return client.get(f"/models/{model}?digest=true").json()["state_digest"]


def test_segment_in_which_the_model_fails_comes_first(client):
    assert client.put("/models/m", json=SPEC).status_code == 201
    assert by(client, "country") | {"model": ""} == {
        "model": "", "seq": 0, "by": "country", "measure": "log_loss", "since_start": [],
        "fading": [],
    }  # fmt: skip
    learn(client, rows(3_000))
    view = by(client, "country")
    for name in ("since_start", "fading"):
        total, first, *others = view[name]
        assert (total["value"], first["value"]) == ("(all)", FAILING)
        assert {one["value"] for one in others} == {"DE", "FR", "(missing)"}
        assert first["error_rate"] > 0.6 > 0.2 > max(one["error_rate"] for one in others)
        assert first["harm"] > 0 > max(one["harm"] for one in others)
        assert total["harm"] == pytest.approx(sum(one["harm"] for one in view[name]), abs=1e-12)
    total, *segments = view["since_start"]
    metrics = client.get("/models/m/metrics").json()["since_start"]
    assert total["rows"] == sum(one["rows"] for one in segments) == 3_000
    assert total["error_rate"] == pytest.approx(metrics["error_rate"])
    assert total["log_loss"] == pytest.approx(metrics["log_loss"])
    assert {one["value"] for one in by(client, "member")["since_start"]} == {
        "(all)", "true", "false",
    }  # fmt: skip


def test_counts_are_those_of_the_rows(client):
    client.put("/models/m", json=SPEC)
    some = rows(200)
    some[3]["price"] = "cheap"
    counts = defaultdict(int)
    for at, row in enumerate(some):
        if at != 3:
            counts[row["country"] or "(missing)"] += 1
    for begin in (0, 50, 51, 52):
        learn(client, some[begin : {0: 50, 50: 51, 51: 52, 52: 200}[begin]])
    segments = by(client, "country")["since_start"][1:]
    assert {one["value"]: one["rows"] for one in segments} == counts
    positives = sum(row["y"] for at, row in enumerate(some) if at != 3 and row["country"] == "DE")
    [germany] = [one for one in segments if one["value"] == "DE"]
    assert germany["mean_label"] * germany["rows"] == pytest.approx(positives)


def test_batches_restarts_and_replays_give_equal_states(serve, tmp_path):
    client = serve(snapshot_every=70)
    some = rows(300, 1)
    for model, size in (("batch", 300), ("rows", 1), ("m", 17)):
        client.put(f"/models/{model}", json=SPEC)
        for begin in range(0, 300, size):
            learn(client, some[begin : begin + size], model)
    assert digest(client, "batch") == digest(client, "rows") == digest(client)
    view = by(client, "country")
    again = serve()
    assert by(again, "country") == view and digest(again) == digest(client)
    learn(again, some[:100])
    learn(client, some[:100], "rows")
    assert digest(again) == digest(client, "rows")


def test_workers_on_one_store_agree(serve):
    one, other = serve(), serve()
    one.put("/models/m", json=SPEC)
    some = rows(120, 2)
    for begin in range(0, 120, 10):
        learn((one, other)[begin // 10 % 2], some[begin : begin + 10])
    seq = learn(one, rows(1, 3))["seq"]
    learn(other, rows(1, 4))
    learn(one, rows(1, 5))
    assert other.get(f"/predict?model=m&x=&min_seq={seq + 2}").status_code in (200, 422)
    assert by(one, "country") == by(other, "country")


def test_late_labels_count_once_with_the_served_scores(client):
    client.put("/models/m", json=SPEC)
    learn(client, rows(200, 6))
    row = {"price": 3.0, "device": "a", "country": "FR", "id": "a"}
    served = client.post("/models/m/predict?remember=true", json=row).json()
    learn(client, rows(400, 7, fails="FR"))
    before = {one["value"]: one for one in by(client, "country")["since_start"]}["FR"]
    for label in (1, 0):
        answer = client.post("/models/m/labels?revise=true", json={"id": "a", "y": label})
        assert answer.status_code == 200, answer.text
        after = {one["value"]: one for one in by(client, "country")["since_start"]}["FR"]
        assert after["rows"] == before["rows"] + 1
        added = (
            after["mean_prediction"] * after["rows"] - before["mean_prediction"] * before["rows"]
        )
        assert added == pytest.approx(served["probability"])


def test_rollback_brings_back_the_segments_of_the_version(client):
    client.put("/models/m", json=SPEC)
    learn(client, rows(100, 8))
    view = by(client, "country")
    assert client.post("/models/m/versions", json={"name": "v"}).status_code in (200, 201)
    learn(client, [row | {"country": "IT"} for row in rows(50, 9)])
    assert "IT" in {one["value"] for one in by(client, "country")["since_start"]}
    assert client.post("/models/m/rollback", json={"version": "v"}).status_code == 200
    assert by(client, "country")["since_start"] == view["since_start"]


def test_unknown_columns_are_listed(client):
    client.put("/models/m", json=SPEC)
    client.put("/models/plain", json={"columns": {"types": TYPES}})
    problem = assert_problem(client.get("/models/m/metrics?by=city"), 404, "unknown-segments")
    assert problem["detail"] == "model 'm' has no segments 'city'; it has country, member"
    problem = assert_problem(client.get("/models/plain/metrics?by=city"), 404, "unknown-segments")
    assert problem["detail"].endswith("it was created without `segments`")
    wrong = SPEC | {"segments": ["city"]}
    problem = assert_problem(client.put("/models/n", json=wrong), 422, "invalid-spec")
    assert problem["errors"][0]["pointer"] == "/segments/0"
    assert "(country, device, member)" in problem["errors"][0]["reason"]


@pytest.mark.parametrize("task", ["regression", "multiclass"])
def test_other_tasks(client, task):
    spec = SPEC | {"task": task, "loss": "squared" if task == "regression" else "logistic"}
    assert client.put("/models/m", json=spec).status_code == 201
    some = [
        row | {"y": float(row["y"]) if task == "regression" else f"c{row['y']}"}
        for row in rows(500)
    ]
    learn(client, some)
    view = by(client, "country")
    total, first, *_ = view["since_start"]
    assert first["value"] == FAILING
    metrics = client.get("/models/m/metrics").json()["since_start"]
    if task == "regression":
        assert view["measure"] == "mae" and total["error_rate"] is total["log_loss"] is None
        assert total["mae"] == pytest.approx(metrics["mae"])
        labels = [row["y"] for row in some]
        assert total["mean_label"] == pytest.approx(sum(labels) / 500)
        assert abs(total["mean_prediction"] - total["mean_label"]) < 0.2
    else:
        assert view["measure"] == "log_loss" and total["mean_prediction"] is None
        assert total["error_rate"] == pytest.approx(metrics["error_rate"])
        assert total["log_loss"] == pytest.approx(metrics["log_loss"])


@pytest.mark.parametrize("task", ["binary", "regression", "multiclass"])
def test_coverage_of_all_rows_is_that_of_the_intervals(client, task, subtests):
    spec = SPEC | {"task": task, "loss": "squared" if task == "regression" else "logistic"}
    spec |= {"intervals": {"coverage": [0.8, 0.9]}}
    client.put("/models/m", json=spec)
    client.put("/models/rows", json=spec)
    some = rows(400)
    for row in some:
        # Labels in one country are noise, which intervals of all rows do not cover there.
        noise = row["price"] * 40 * (row["country"] == FAILING)
        row["y"] = row["y"] + noise if task == "regression" else row["y"]
        row["y"] = f"c{row['y']}" if task == "multiclass" else row["y"]
    some[50]["weight"] = 0
    learn(client, some)
    for row in some:
        learn(client, [row], "rows")
    assert digest(client) == digest(client, "rows")
    total, *segments = by(client, "country")["since_start"]
    levels = {str(one["level"]): one for one in client.get("/models/m/metrics").json()["intervals"]}
    assert total["coverage"] == {name: one["coverage"] for name, one in levels.items()}
    coverage = {one["value"]: one["coverage"]["0.9"] for one in segments}
    assert min(coverage, key=coverage.get) == FAILING
    late = some[0] | {"id": "a"}
    label = late.pop("y")
    client.post("/models/m/predict?remember=true", json=late)
    client.post("/models/m/labels", json={"id": "a", "y": label})
    after = by(client, "country")["since_start"][0]["coverage"]
    levels = client.get("/models/m/metrics").json()["intervals"]
    assert after == {str(one["level"]): one["coverage"] for one in levels}


def test_alert_rate_of_all_rows_is_that_of_the_decisions(client):
    spec = SPEC | {"alert_rate": 0.1, "intervals": {"coverage": 0.9}}
    for model in ("m", "rows"):
        client.put(f"/models/{model}", json=spec)
    some = rows(400)
    for row in some:
        row["price"] += 2.0 * (row["country"] == "DE")
    learn(client, some)
    for row in some:
        learn(client, [row], "rows")
    assert digest(client) == digest(client, "rows")
    total, *segments = by(client, "country")["since_start"]
    alerts = client.get("/models/m/metrics").json()["alerts"]["since_start"]
    # The first 20 rows have no threshold.
    assert total["alert_rate"] * 400 == pytest.approx(alerts["alerts"]) and alerts["rows"] == 380
    rates = {one["value"]: one["alert_rate"] for one in segments}
    assert max(rates, key=rates.get) == "DE" and list(total["coverage"]) == ["0.9"]
    with_costs = spec | {"costs": {"false_negative": 5}}
    del with_costs["alert_rate"]
    client.put("/models/costs", json=with_costs)
    learn(client, some, "costs")
    assert by(client, "country", "costs")["since_start"][0]["alert_rate"] is None


def test_observed_rows_of_a_history_do_not_count(client):
    history = [{"by": ["device"], "stats": ["label_mean"], "half_life": 100}]
    assert client.put("/models/m", json=SPEC | {"history": history}).status_code == 201
    some = rows(50)
    learn(client, some)
    answer = client.post("/models/m/observe", json=some[:20])
    assert answer.status_code == 200, answer.text
    assert by(client, "country")["since_start"][0]["rows"] == 50


def test_replay_adds_segments_to_a_model_that_has_none(serve, store):
    client = serve(store=store)
    plain = {name: value for name, value in SPEC.items() if name != "segments"}
    for model, spec in (("m", plain), ("other", SPEC)):
        client.put(f"/models/{model}", json=spec)
        learn(client, rows(300), model)
    result = replayed(store, "--set", 'segments=["country", "member"]')
    assert result["state_digest"] == digest(client, "other")
    view = by(client, "country", "other")
    assert result["segments"]["country"]["since_start"] == view["since_start"]
    command = ["replay", "other", "--store", store]
    assert f"\nsegment country={FAILING}: {{" in CliRunner().invoke(cli.app, command).output


def test_series_are_bounded_and_only_there_if_wanted(serve):
    plain = serve()
    plain.put("/models/m", json=SPEC)
    learn(plain, [row | {"country": str(at % 40)} for at, row in enumerate(rows(200))])
    assert "dualstream_segment" not in plain.get("/metrics").text
    text = serve(metrics_segments=True).get("/metrics").text
    series = [
        line for line in text.splitlines() if line.startswith("dualstream_segment_rows_total")
    ]
    assert sum('column="country"' in line for line in series) == 21
    other = [line for line in series if 'segment="(other)"' in line]
    assert [line.rpartition(" ")[2] for line in other] == ["100.0"]
    assert 'dualstream_segment_errors_total{column="member",model="m",segment="true"}' in text
