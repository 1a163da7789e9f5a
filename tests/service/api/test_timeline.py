"""GET /models/{id}/timeline: the way to the metrics as they are, and the drift that was seen."""

from datetime import UTC, datetime

import numpy as np
import pytest


def rows_of(n, flip, seed=0):
    """Samples whose label is the sign of their one feature, or the opposite from row `flip`."""
    random = np.random.default_rng(seed)
    x = random.standard_normal(n)
    y = np.where((np.arange(n) < flip) == (x > 0), 1, -1)
    return [{"x": [float(a)], "y": int(b)} for a, b in zip(x, y, strict=True)]


@pytest.fixture
def drifting(client):
    spec = {"loss": "hinge", "features": {"kind": "indexed", "dim": 1}}
    assert client.put("/models/d", json=spec).status_code == 201
    for at in (0, 1000, 2000):
        samples = rows_of(3000, 2000)[at : at + 1000]
        assert client.post("/models/d/learn", json={"samples": samples}).status_code == 200
    return client


def test_points_lead_to_the_metrics_and_events_say_where(drifting):
    answer = drifting.get("/models/d/timeline")
    got, metrics = answer.json(), drifting.get("/models/d/metrics").json()
    assert (got["seq"], got["samples"]) == (3000, 3000)
    assert set(got) == {
        "model",
        "seq",
        "samples",
        "points",
        "events",
        "times",
    }  # nothing of staleness
    assert {event["kind"] for event in got["events"]} == {"drift"}
    rows = [point["rows"] for point in got["points"]]
    assert rows[-1] == 3000 and rows == sorted(rows) and 128 <= len(rows) <= 256
    # Points are made of sums, so they have no ranking.
    ranking = {name: metrics["since_start"][name] for name in ("auc", "average_precision")}
    assert not set(ranking) & set(got["points"][-1]["since_start"])
    assert got["points"][-1]["since_start"] | ranking == metrics["since_start"]
    errors = sum(p["rolling"]["error_rate"] * p["rolling"]["rows"] for p in got["points"])
    assert errors == pytest.approx(metrics["since_start"]["error_rate"] * 3000)
    rising = [event for event in got["events"] if event["rising"]]
    assert 2000 < rising[0]["rows"] == rising[0]["seq"] < 2300
    for detector, counts in metrics["drift"].items():
        seen = [event["rising"] for event in got["events"] if event["detector"] == detector]
        assert counts == {"rising": seen.count(True), "falling": seen.count(False)}
    again = drifting.get("/models/d/timeline", headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304


def test_going_back_takes_the_way_back_too(drifting):
    before = drifting.get("/models/d/timeline").json()
    assert drifting.post("/models/d/versions", json={"name": "v"}).status_code == 201
    samples = rows_of(500, 0, seed=1)
    drifting.post("/models/d/learn", json={"samples": samples})
    assert drifting.get("/models/d/timeline").json()["points"] != before["points"]
    assert drifting.post("/models/d/rollback", json={"version": "v"}).status_code == 200
    after = drifting.get("/models/d/timeline").json()
    assert (after["points"], after["events"]) == (before["points"], before["events"])


def test_times_are_those_of_this_process(drifting):
    before = datetime.now(UTC)
    drifting.post("/models/d/learn", json={"samples": rows_of(10, 0, seed=2)})
    times = drifting.get("/models/d/timeline").json()["times"]
    assert [one["rows"] for one in times][-1] == 3010
    moments = [datetime.fromisoformat(one["time"]) for one in times]
    assert moments == sorted(moments) and before <= moments[-1] <= datetime.now(UTC)
    [shown] = [
        float(line.split()[-1])
        for line in drifting.get("/metrics").text.splitlines()
        if line.startswith('dualstream_last_record_timestamp_seconds{model="d"}')
    ]
    assert abs(shown - moments[-1].timestamp()) < 1e-5


def test_drift_is_in_the_metrics(drifting):
    got = drifting.get("/models/d/metrics").json()["drift"]
    scraped = drifting.get("/metrics").text
    for detector, counts in got.items():
        for direction, count in counts.items():
            labels = f'detector="{detector}",direction="{direction}",model="d"'
            assert f"dualstream_drift_total{{{labels}}} {float(count)}" in scraped


def test_no_such_model(client):
    assert client.get("/models/none/timeline").status_code == 404


def test_a_new_model_has_no_points(client):
    client.put("/models/new", json={"features": {"kind": "indexed", "dim": 1}})
    got = client.get("/models/new/timeline").json()
    assert (got["points"], got["events"]) == ([], [])
