"""Alerts of models with a history: remembered and observed rows move the threshold, each once."""

import numpy as np
import pytest

from dualstream.solvers.evaluation.decisions.alerts import WARM_UP

SPEC = {
    "alert_rate": 0.1,
    "columns": {"label": "fraud", "id": "tx",
                "types": {"card": "ignore", "at": {"kind": "time", "parts": ["hour"]},
                          "amount": "number"}},
    "history": [{"by": ["card"], "time": "at", "of": "amount", "stats": ["mean"],
                 "half_life": ["1d"]}],
    "features": {"kind": "hashed", "bits": 10},
}  # fmt: skip
START = 1_700_000_000


def payments(n: int, first: int = 0) -> list[dict]:
    draw = np.random.default_rng(first)
    amounts = draw.lognormal(3, 1, n).round(2).tolist()
    return [
        {"tx": f"t{first + at}", "card": f"c{at % 7}", "at": START + 600 * (first + at),
         "amount": amount}
        for at, amount in enumerate(amounts)
    ]  # fmt: skip


@pytest.fixture
def served(serve):
    client = serve()
    assert client.put("/models/m", json=SPEC).status_code == 201
    rows = [row | {"fraud": int(row["amount"] > 50)} for row in payments(100)]
    assert client.post("/models/m/learn", json=rows).json()["learned"] == 100
    return client


def counts_of(client) -> dict:
    return client.get("/models/m/metrics").json()["alerts"]["since_start"]


def digest_of(client) -> str:
    return client.get("/models/m?digest=true").json()["state_digest"]


def test_remembered_rows_move_the_threshold_and_their_labels_do_not(served, serve):
    assert counts_of(served)["rows"] == 100 - WARM_UP
    rows = payments(60, 100)
    alerts = []
    for row in rows:
        answer = served.post("/models/m/predict?remember=true", json=row).json()
        assert answer["remembered"] == 1
        alerts.append(answer["alert"])
    after = counts_of(served)
    assert after["rows"] == 160 - WARM_UP
    assert after["labelled"] == 100
    threshold = served.post("/models/m/predict", json=rows[0]).json()["threshold"]
    frauds = [row["amount"] > 50 for row in rows]
    labels = [{"id": r["tx"], "y": int(f)} for r, f in zip(rows, frauds, strict=True)]
    assert served.post("/models/m/labels", json={"labels": labels}).json()["learned"] == 60
    labelled = counts_of(served)
    assert {name: labelled[name] for name in ("rows", "alerts", "rate")} == {
        name: after[name] for name in ("rows", "alerts", "rate")
    }
    assert labelled["labelled"] == 160
    assert served.post("/models/m/predict", json=rows[0]).json()["threshold"] == threshold
    caught = sum(a and f for a, f in zip(alerts, frauds, strict=True))
    assert sum(alerts) > 2 and caught > 0
    one = served.get("/models/m/metrics").json()["alerts"]
    before_recall = one["since_start"]["recall"]
    assert 0 < before_recall <= 1
    assert one["alerts_a_day"] == pytest.approx(0.1 * 144, rel=0.5)
    digest = digest_of(served)
    assert digest_of(serve()) == digest
    served.post("/models/m/labels", json={"labels": labels})  # repeated: nothing is new
    assert digest_of(served) == digest


def test_observed_rows_move_the_threshold_by_their_scores(served, serve):
    rows = payments(50, 500)
    many = served.post("/models/m/predict", json=rows[:1]).json()
    answer = served.post("/models/m/observe", json=rows).json()
    assert answer["count"] == 50
    counts = counts_of(served)
    assert counts["rows"] == 150 - WARM_UP
    assert counts["labelled"] == 100
    assert abs(counts["alerts"] - 0.1 * counts["rows"]) < 12
    served.post("/models/m/observe", json=rows)  # the same ids: nothing is new
    assert counts_of(served) == counts
    digest = digest_of(served)
    assert digest_of(serve()) == digest
    high = {"tx": "high", "card": "c1", "at": START + 600 * 700, "amount": 100_000}
    assert served.post("/models/m/predict", json=high).json()["alert"]
    served.post("/models/m/observe", json=high)
    assert counts_of(served)["alerts"] == counts["alerts"] + 1
    assert many["thresholds"][0] is not None


def test_observed_rows_without_features_or_weight_enter_as_before(served):
    csv = "card,at\nc1,2023-11-20T00:00:00Z\nc2,2023-11-20T00:01:00Z\n"
    headers = {"content-type": "text/csv"}
    answer = served.post("/models/m/observe", content=csv, headers=headers)
    assert answer.json()["count"] == 2
    assert counts_of(served)["rows"] == 102 - WARM_UP


def test_replay_under_the_same_fields_has_the_same_alerts(served):
    rows = payments(30, 100)
    for row in rows:
        served.post("/models/m/predict?remember=true", json=row)
    labels = [{"id": row["tx"], "y": int(row["amount"] > 50)} for row in rows]
    served.post("/models/m/labels", json={"labels": labels})
    plain = {name: value for name, value in SPEC.items() if name != "alert_rate"}
    assert served.put("/models/plain", json=plain).status_code == 201
    learned = [row | {"fraud": int(row["amount"] > 50)} for row in payments(100)]
    served.post("/models/plain/learn", json=learned)
    for row in rows:
        served.post("/models/plain/predict?remember=true", json=row)
    served.post("/models/plain/labels", json={"labels": labels})
    states = [
        served.post(f"/models/{name}/predict", json=rows[:3]).json()["scores"]
        for name in ("m", "plain")
    ]
    assert states[0] == states[1]  # the field changes no bit of the learner
