"""GET /models/{id}/trends: figures of the last rows over time."""

import pytest

from dualstream.service.features import trends
from tests.service.conftest import SPEC
from tests.service.features.intervals.support import NUMBER, labels_of, rows


def learn(client, task, n, seed, model="m"):
    x, numbers = rows(n, seed)
    client.post(f"/models/{model}/learn", json={"x": x, "y": labels_of(task, numbers)})


def trends_of(client, model="m"):
    answer = client.get(f"/models/{model}/trends")
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return found, {(one["name"], one["of"]): one["values"] for one in found["series"]}


def test_points_are_the_metrics_at_their_rows(client, monkeypatch):
    monkeypatch.setattr(trends, "MAX_POINTS", 8)
    client.put("/models/m", json=SPEC)
    assert trends_of(client)[1] == {}
    aucs = {}
    for seed in range(20):
        learn(client, "binary", 30, seed)
        aucs[30 * seed + 30] = client.get("/models/m/metrics").json()["rolling"]["auc"]
    found, series = trends_of(client)
    # The first row, each 50 and later each 100 rows; and the present one.
    assert found["rows"][-1] == 600 and found["rows"] == sorted(set(found["rows"]))
    assert 4 <= len(found["rows"]) <= 9 and len(found["times"]) == len(found["rows"])
    shown = series["auc", None]
    assert shown == pytest.approx([aucs[row] for row in found["rows"]], rel=1e-6)
    # A rollback takes back what came after it.
    at = found["rows"][2]
    client.post("/models/m/rollback", json={"seq": at})
    assert trends_of(client)[0]["rows"][-1] == at
    learn(client, "binary", 30, 50)
    assert trends_of(client)[0]["rows"] == [*found["rows"][:2], at, at + 30]


def test_parts_and_members_have_trends(client):
    client.put("/models/m", json=NUMBER)
    members = [{"kind": "diagonal_newton"}, {"kind": "dual_ascent"}]
    client.put("/models/pair", json={"members": members, "features": SPEC["features"]})
    for seed in range(3):
        learn(client, "regression", 60, seed)
        learn(client, "binary", 60, seed, "pair")
    _, series = trends_of(client)
    metrics = client.get("/models/m/metrics").json()["intervals"][0]
    assert list(series) == [("coverage", "0.8")]
    assert series["coverage", "0.8"][-1] == pytest.approx(metrics["recent_coverage"])
    _, series = trends_of(client, "pair")
    shares = {key[1]: values for key, values in series.items() if key[0] == "share"}
    now = {
        one["name"]: one["weight"] for one in client.get("/models/pair/members").json()["members"]
    }
    assert {name: values[-1] for name, values in shares.items()} == pytest.approx(now)
    assert [sum(at) for at in zip(*shares.values(), strict=True)] == pytest.approx([1.0] * 3)
