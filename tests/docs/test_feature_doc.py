"""The example feature of service/features/DESIGN.md runs as written."""

import pytest

from dualstream.service.features import FEATURES
from dualstream.service.http import openapi
from tests.docs.documents import ROOT, blocks
from tests.service.conftest import SPEC

ROUTE = "/models/m/label_counts"


@pytest.fixture
def features(monkeypatch):
    monkeypatch.setattr(openapi, "SCHEMAS", dict(openapi.SCHEMAS))
    text = (ROOT / "service/features/DESIGN.md").read_text()
    [example] = [lines for _, language, lines in blocks(text) if language == "python"]
    module = {"__name__": "label_counts"}
    exec(example, module)
    return (*FEATURES, module["FEATURE"])


def test_example_feature_counts_labels(serve, features):
    client = serve(features=features, snapshot_every=2)
    assert client.put("/models/m", json=SPEC).status_code == 201
    rows = {"x": [[1, 0, 0, 2, 0]] * 4, "y": [1, -1, 1, 7]}
    assert client.post("/models/m/learn", json=rows).json()["learned"] == 3
    assert client.get(ROUTE).json() == {"seq": 3, "rows": {"-1": 1, "1": 2}}
    assert 'dualstream_label_rows_total{label="1",model="m"} 2.0' in client.get("/metrics").text


def test_example_feature_restores_its_state(serve, features):
    client = serve(features=features, snapshot_every=2)
    assert client.put("/models/m", json=SPEC | {"task": "multiclass"}).status_code == 201
    for label in ("cat", "dog", "cat"):
        client.post("/models/m/learn", json={"x": [1, 0, 0, 2, 0], "y": label})
    answers = [client.get(path).json() for path in (ROUTE, "/models/m?digest=true")]
    assert answers[0] == {"seq": 3, "rows": {'"cat"': 2, '"dog"': 1}}
    again = serve(features=features)
    assert [again.get(path).json() for path in (ROUTE, "/models/m?digest=true")] == answers


def test_server_works_without_the_example_feature(serve, features):
    learned, plain = serve(features=features), serve()
    for client, model in ((learned, "m"), (plain, "p")):
        assert client.put(f"/models/{model}", json=SPEC).status_code == 201
        client.post(f"/models/{model}/learn", json={"x": [1, 0, 0, 2, 0], "y": 1})
    scores = [
        client.post(f"/models/{model}/predict", json={"x": [1, 1, 1, 1, 1]}).json()["score"]
        for client, model in ((learned, "m"), (plain, "m"), (plain, "p"))
    ]
    assert len(set(scores)) == 1
    assert plain.get(ROUTE).status_code == 404
