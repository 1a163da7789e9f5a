"""Prediction intervals and sets of a served model: answers, metrics, late labels, equal states."""

import asyncio
from typing import Any

import numpy as np
import pytest

from dualstream.service.features import ALL
from dualstream.service.jobs.label_timeouts import DefaultLabels
from dualstream.service.replay.replay import replay
from dualstream.solvers import Batch, make_learner, resolve_spec
from dualstream.solvers.evaluation.intervals.calibration import Calibration
from tests.service.conftest import assert_problem
from tests.service.features.guard.support import paused
from tests.service.features.intervals.support import (
    BINARY,
    CLASSES,
    NUMBER,
    PORTFOLIO,
    TWO,
    labels_of,
    rows,
)


def made(client, spec: dict[str, Any], n: int = 0, model: str = "m"):
    assert client.put(f"/models/{model}", json=spec).status_code == 201
    if n:
        learn(client, spec.get("task", "binary"), n, model=model)
    return client


def learn(client, task: str, n: int, seed: int = 0, model: str = "m") -> None:
    x, numbers = rows(n, seed)
    body = {"x": x, "y": labels_of(task, numbers)}
    assert client.post(f"/models/{model}/learn", json=body).json()["learned"] == n


def predict(client, x: Any, query: str = "", model: str = "m") -> dict[str, Any]:
    answer = client.post(f"/models/{model}/predict{query}", json={"x": x})
    assert answer.status_code == 200, answer.text
    return answer.json()


def metrics(client, model: str = "m") -> list[dict[str, Any]]:
    return client.get(f"/models/{model}/metrics").json()["intervals"]


def digest(client, model: str = "m") -> str:
    return client.get(f"/models/{model}?digest=true").json()["state_digest"]


ROW = [1, 0, 0.5, 0, -1]


def test_the_last_rows_are_returned_with_their_intervals(serve):
    client = made(serve(), NUMBER | TWO, 30)
    # What predict answers right before a row is learned is what the row is listed with.
    x, numbers = rows(3, seed=1)
    predicted = []
    for row, label in zip(x, labels_of("regression", numbers), strict=True):
        predicted.append(predict(client, row))
        client.post("/models/m/learn", json={"x": row, "y": label})
    found = client.get("/models/m/intervals").json()
    assert found["seqs"] == list(range(21, 34))
    assert found["scores"][-3:] == [one["score"] for one in predicted]
    assert found["labels"][-3:] == labels_of("regression", numbers)
    for level, ends in found["intervals"].items():
        assert ends[-3:] == [one["intervals"][level] for one in predicted]
    learn(client, "regression", 250, seed=2)
    assert client.get("/models/m/intervals").json()["seqs"] == list(range(84, 284))
    made(client, CLASSES, model="other")
    assert_problem(client.get("/models/other/intervals"), 404, "no-intervals")


def test_numbers_have_an_interval_around_their_score(serve):
    client = made(serve(), NUMBER, 19)
    assert predict(client, ROW)["interval"] is None
    assert predict(client, [ROW] * 2)["intervals"] == [None, None]
    assert metrics(client) == [
        {"level": 0.8, "rows": 0, "coverage": None, "recent_coverage": None, "unbounded": 0}
        | {"mean_width": None}
    ]
    learn(client, "regression", 300, 1)
    one = predict(client, ROW)
    low, high = one["interval"]
    assert low < one["score"] < high and (low + high) / 2 == pytest.approx(one["score"])
    many = predict(client, [ROW, [1, 2], [0, 1, 0, 0, 0]])
    assert many["intervals"][0] == one["interval"] and many["intervals"][1] is None
    assert many["intervals"][2][1] - many["intervals"][2][0] == pytest.approx(high - low)
    assert "interval" not in many and "sets" not in many and "intervals" not in one
    [figures] = metrics(client)
    assert figures["rows"] == 299 and abs(figures["coverage"] - 0.8) < 0.04
    assert figures["mean_width"] == pytest.approx(high - low, rel=0.5)


def test_intervals_hold_the_labels_that_come(serve):
    """What one-row predictions answer covers the share of labels that the metrics say."""
    client, (x, numbers) = made(serve(), NUMBER, 20), rows(120, 2)
    covered = []
    for row, y in zip(x, numbers.tolist(), strict=True):
        low, high = predict(client, row)["interval"]
        covered.append(low <= y <= high)
        client.post("/models/m/learn", json={"x": row, "y": y})
    [figures] = metrics(client)
    assert (figures["rows"], figures["coverage"]) == (120, np.mean(covered))


@pytest.mark.parametrize("spec", [BINARY, BINARY | {"loss": "hinge"}, CLASSES], ids=str)
def test_sets_have_the_predicted_class_first(serve, spec):
    task = spec.get("task", "binary")
    client = made(serve(), spec, 500)
    x, numbers = rows(200, 3)
    answer = predict(client, x)
    sets, labels = answer["sets"], labels_of(task, numbers)
    assert [one[0] for one in sets] == answer["labels"]
    assert len({len(one) for one in sets}) >= 2
    assert all(len(set(one)) == len(one) for one in sets)
    assert np.mean([label in one for label, one in zip(labels, sets, strict=True)]) > 0.87
    one = predict(client, x[0])
    assert one["set"] == answer["sets"][0]
    [figures] = metrics(client)
    assert figures["mean_set_size"] == pytest.approx(np.mean([*map(len, answer["sets"])]), abs=0.3)


def test_sets_of_named_classes(serve):
    client = made(serve(), BINARY | {"labels": ["ham", "spam"]})
    x, numbers = rows(300)
    y = ["spam" if one > 0 else "ham" for one in numbers]
    client.post("/models/m/learn", json={"x": x, "y": y})
    answer = predict(client, x)
    assert {tuple(one) for one in answer["sets"]} == {
        ("ham",), ("spam",), ("ham", "spam"), ("spam", "ham")
    }  # fmt: skip


def test_a_list_of_levels_has_one_of_each(serve):
    client = made(serve(), NUMBER | TWO, 19)
    nothing = {"0.5": None, "0.9": None}
    assert predict(client, ROW)["intervals"] == nothing
    learn(client, "regression", 300, 1)
    one = predict(client, ROW)
    narrow, wide = one["intervals"]["0.5"], one["intervals"]["0.9"]
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    assert predict(client, [ROW])["intervals"] == [one["intervals"]]
    assert [figures["level"] for figures in metrics(client)] == [0.5, 0.9]
    classes = made(client, CLASSES | TWO, 300, model="c")
    sets = predict(classes, [ROW], model="c")["sets"][0]
    assert set(sets["0.5"]) <= set(sets["0.9"]) and list(sets) == ["0.5", "0.9"]
    assert predict(classes, ROW, model="c")["sets"] == sets


def test_all_numbers_and_no_interval(serve):
    """After rows that were missed a is 0 or less; after rows that were covered it may be 1."""
    client = made(serve(), NUMBER | {"intervals": {"coverage": 0.99}}, 40)
    for y in (1e3, 1e5, 1e7):
        client.post("/models/m/learn", json={"x": ROW, "y": y})
    assert predict(client, ROW)["interval"] == [None, None]
    assert predict(client, [ROW])["intervals"] == [[None, None]]
    client.post("/models/m/learn", json={"x": ROW, "y": 3})
    assert metrics(client)[0]["unbounded"] > 0
    client = made(client, NUMBER | {"intervals": {"coverage": 0.001}}, model="e")
    learn(client, "regression", 30, model="e")
    for seed in range(1, 4):
        learn(client, "regression", 400, seed, model="e")
    one = predict(client, ROW, model="e")
    low, high = one["interval"]
    assert low <= one["score"] <= high and high - low < 0.2


@pytest.mark.parametrize("spec", [NUMBER | TWO, BINARY, CLASSES, PORTFOLIO], ids=str)
def test_batches_rows_restarts_and_replays_agree(serve, tmp_path, spec):
    store = f"sqlite:///{tmp_path / 'm.db'}"
    client, other = serve(store=store), serve(store=f"sqlite:///{tmp_path / 'o.db'}")
    x, numbers = rows(60)
    y = labels_of(spec.get("task", "binary"), numbers)
    for one in (client, other):
        made(one, spec)
    client.post("/models/m/learn", json={"x": x, "y": y})
    for row, label in zip(x, y, strict=True):
        other.post("/models/m/learn", json={"x": row, "y": label})
    assert digest(client) == digest(other) and metrics(client) == metrics(other)
    again = serve(store=store)
    assert digest(again) == digest(client)
    assert predict(again, x)["scores"] == predict(client, x)["scores"]
    replayed = asyncio.run(replay(ALL, store, "m", None, {}))
    assert replayed.state_digest == digest(client)
    learner = make_learner(resolve_spec(spec))
    if spec["task" if "task" in spec else "loss"] == "regression":
        outcome = learner.learn(Batch.from_dense(np.array(x), np.array(y)))
        calibration = Calibration("regression", [f["level"] for f in metrics(client)])
        rows_ = Batch.from_dense(np.array(x), np.array(y))
        calibration.learn(rows_, outcome, np.empty(0, np.bool_), np.empty((0, 0)))
        coverage = [one.coverage for one in calibration.figures()]
        assert coverage == [one["coverage"] for one in metrics(client)]


def test_replay_adds_and_changes_levels(serve, tmp_path):
    store = f"sqlite:///{tmp_path / 'm.db'}"
    client = made(serve(store=store), NUMBER, 200)
    plain = {name: value for name, value in NUMBER.items() if name != "intervals"}
    other = made(serve(store=f"sqlite:///{tmp_path / 'o.db'}"), plain | TWO, 200)
    remembered(client, "a", "b")
    label(client, a=1.0)
    changes = {"intervals": TWO["intervals"]}
    replayed = asyncio.run(replay(ALL, store, "m", 200, changes))
    assert replayed.state_digest == digest(other)
    assert asyncio.run(replay(ALL, store, "m", None, changes)).samples == 201


def test_versions_and_rollbacks_bring_their_calibration(serve):
    client = made(serve(), NUMBER, 100)
    before = predict(client, ROW)
    client.post("/models/m/versions", json={"name": "v"})
    learn(client, "regression", 100, 5)
    assert predict(client, ROW)["interval"] != before["interval"]
    assert predict(client, ROW, "?version=v")["interval"] == before["interval"]
    assert client.post("/models/m/rollback", json={"version": "v"}).status_code == 200
    assert predict(client, ROW)["interval"] == before["interval"]
    assert metrics(client)[0]["rows"] == 80


# -- late labels -----------------------------------------------------------------------------------


def remembered(client, *ids: str, query: str = "") -> dict[str, Any]:
    samples = [{"id": one, "x": [1, index, 0, 0, 1]} for index, one in enumerate(ids)]
    sent = {"samples": samples}
    answer = client.post(f"/models/m/predict?remember=true{query}", json=sent)
    assert answer.status_code == 200, answer.text
    return answer.json()


def label(client, query: str = "", **labels: Any) -> dict[str, Any]:
    sent = {"labels": [{"id": name, "y": y} for name, y in labels.items()]}
    answer = client.post(f"/models/m/labels{query}", json=sent)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("spec", [NUMBER, PORTFOLIO], ids=str)
def test_late_labels_count_with_the_interval_that_was_served(serve, tmp_path, spec):
    store = f"sqlite:///{tmp_path / 'm.db'}"
    client = made(serve(store=store), spec)
    remembered(client, "early")
    learn(client, "regression", 100)
    served = dict(zip("abc", remembered(client, *"abc")["intervals"], strict=True))
    learn(client, "regression", 300, 7)
    now = dict(zip("xyz", remembered(client, *"xyz")["intervals"], strict=True))
    assert served["a"] != now["x"]
    [before] = metrics(client)
    inside, outside = sum(served["a"]) / 2, served["b"][1] + 1e-9
    label(client, a=inside, b=outside)
    [after] = metrics(client)
    assert after["rows"] - before["rows"] == 2
    covered = [round(one["coverage"] * one["rows"]) for one in (before, after)]
    assert covered[1] - covered[0] == 1
    width = after["mean_width"] * after["rows"] - before["mean_width"] * before["rows"]
    assert width == pytest.approx(sum(high - low for low, high in (served["a"], served["b"])))
    label(client, early=1.0)  # had no interval
    assert metrics(client)[0]["rows"] == after["rows"]
    again = serve(store=store)
    assert digest(again) == digest(client) and metrics(again) == metrics(client)
    assert label(again, c=0.5)["learned"] == 1
    assert digest(serve(store=store)) == digest(again)


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_late_classes_count_with_the_set_that_was_served(serve, tmp_path, loss):
    store = f"sqlite:///{tmp_path / 'm.db'}"
    client = made(serve(store=store), CLASSES | {"loss": loss}, 200)
    ids = [f"r{k}" for k in range(40)]
    sets = dict(zip(ids, remembered(client, *ids)["sets"], strict=True))
    learn(client, "multiclass", 300, 7)
    [before] = metrics(client)
    labels = {one: "mid" for one in ids[:-1]} | {ids[-1]: "another"}
    label(client, **labels)
    [after] = metrics(client)
    covered = [round(one["coverage"] * one["rows"]) for one in (before, after)]
    assert after["rows"] - before["rows"] == 40
    assert covered[1] - covered[0] == sum(labels[one] in sets[one] for one in ids)
    sizes = [one["mean_set_size"] * (one["rows"] - one["unbounded"]) for one in (before, after)]
    assert sizes[1] - sizes[0] == pytest.approx(sum(map(len, sets.values())))
    assert digest(serve(store=store)) == digest(client)


def test_revised_labels_count_once_and_default_labels_too(serve, tmp_path, monkeypatch):
    async def nothing(_: DefaultLabels) -> None:
        pass

    monkeypatch.setattr(DefaultLabels, "run", nothing)  # it may sweep at any moment
    store = f"sqlite:///{tmp_path / 'm.db'}"
    client = made(serve(store=store), NUMBER, 100)
    remembered(client, "a", "b")
    label(client, "?revise=true", a=1.0)
    [first] = metrics(client)
    assert label(client, "?revise=true", a=2.0)["learned"] == 1
    assert metrics(client) == [first]
    default = "&default_label=99&default_after_s=0.001"
    (low, high) = remembered(client, "c", query=default)["intervals"][0]
    learn(client, "regression", 100, 7)
    [before] = metrics(client)
    registry = client.app._registry
    sweep = DefaultLabels(registry, registry.journal).sweep
    while client.get("/models/m").json()["seq"] == 202:
        client.portal.call(sweep)
    [after] = metrics(client)
    assert after["rows"] == before["rows"] + 1
    covered = [round(one["coverage"] * one["rows"]) for one in (before, after)]
    assert covered[0] == covered[1]
    width = after["mean_width"] * after["rows"] - before["mean_width"] * before["rows"]
    assert width == pytest.approx(high - low)
    assert digest(serve(store=store)) == digest(client)


def test_two_workers_agree_with_late_labels(serve, tmp_path):
    store = f"sqlite:///{tmp_path / 'm.db'}"
    one, two = serve(store=store), serve(store=store)
    made(one, NUMBER | TWO, 60)
    learn(two, "regression", 40, 3)
    remembered(two, *"abcd")
    learn(one, "regression", 40, 4)
    label(one, a=1.0, b=50.0)
    label(two, c=-1.0)
    learn(one, "regression", 1, 5)
    predict(two, ROW, "?min_seq=144")
    digests = {digest(client) for client in (one, two, serve(store=store))}
    assert len(digests) == 1 and metrics(one) == metrics(two)


def test_rejected_unweighted_and_quarantined_rows_do_not_count(serve):
    guard = {"guard": {"mode": "pause", "every": 10, "after": 20, "history": 40, "patience": 1}}
    client = made(serve(), NUMBER | guard, 100)
    [before] = metrics(client)
    client.post("/models/m/learn", json={"x": ROW, "y": 1, "weight": 0})
    assert metrics(client) == [before]
    x = [ROW] * 60
    client.post("/models/m/learn", json={"x": x, "y": [1e6 * (-1) ** k for k in range(60)]})
    assert client.get("/models/m").json()["paused"] is not None
    paused(client)
    x, y = rows(50, 8)
    client.post("/models/m/learn", json={"x": x, "y": y.tolist()})
    assert metrics(client) == [before]


def test_observed_rows_of_classes_do_not_count(serve, tmp_path):
    spec = {
        "task": "multiclass",
        "columns": {"types": {"key": "category", "size": "number"}},
        "history": [{"by": "key", "of": "size", "stats": ["mean"], "half_life": 5}],
        "segments": ["key"],
        "intervals": {"coverage": 0.9},
    }
    store = f"sqlite:///{tmp_path}/d.db"
    client = made(serve(store=store), spec)
    row = {"key": "a", "size": 2.0}
    assert client.post("/models/m/observe", json=[row]).status_code == 200
    learned = [row | {"size": k % 5, "y": "lmh"[k % 5 // 2]} for k in range(30)]
    assert client.post("/models/m/learn", json=learned).json()["learned"] == 30
    before = metrics(client)
    assert client.post("/models/m/observe", json=[row, row]).status_code == 200
    waiting = client.post("/models/m/predict?remember=true", json={"x": row, "id": "late"})
    assert waiting.json()["remembered"] == 1
    assert metrics(client) == before
    label = client.post("/models/m/labels", json={"id": "late", "y": "m"})
    assert label.json()["learned"] == 1
    assert metrics(client)[0]["rows"] == before[0]["rows"] + 1
    assert digest(client) == digest(serve(store=store))


# -- other answers ---------------------------------------------------------------------------------


def test_metrics_of_prometheus_and_events(serve):
    client = made(serve(), NUMBER, 200)
    text = client.get("/metrics").text
    [figures] = metrics(client)
    for name, value in {
        "rows_total": 180.0,
        "rows_covered_total": round(figures["coverage"] * 180.0),
        "rows_unbounded_total": 0.0,
        "recent_coverage": figures["recent_coverage"],
        "mean_size": figures["mean_width"],
    }.items():
        assert f'dualstream_interval_{name}{{level="0.8",model="m"}} {float(value)}' in text
    plain = {name: value for name, value in NUMBER.items() if name != "intervals"}
    made(client, plain, 5, model="p")
    assert "intervals" not in client.get("/models/p/metrics").json()
    assert 'level="0.8",model="p"' not in client.get("/metrics").text


def test_wrong_fields_are_refused(serve, subtests):
    client = serve()
    for wrong, reason in {
        "levels": ({"coverage": [0.9, 0.9]}, "intervals.coverage"),
        "range": ({"coverage": 1.0}, "intervals.coverage"),
        "empty": ({"coverage": []}, "intervals.coverage"),
        "unknown": ({"coverage": 0.9, "gamma": 1}, "gamma"),
        "kind": (0.9, "intervals"),
    }.values():
        with subtests.test(wrong):
            spec = NUMBER | {"intervals": wrong}
            problem = assert_problem(client.put("/models/m", json=spec), 422, "invalid-spec")
            assert reason in problem["detail"].replace("/", ".")
