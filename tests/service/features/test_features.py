"""Any optional feature can be absent: the server works without it, and its routes say so."""

import re
from collections import defaultdict

import numpy as np
import pytest
from starlette.testclient import TestClient

from dualstream.service.features import ALL, FEATURES
from dualstream.service.features.feature import Feature
from dualstream.service.http.access import FEATURE_SCOPES
from dualstream.service.journal.protocol import ModelRecord
from dualstream.service.replica.features import FEATURE_FIELDS, Features
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.spec import canonical
from dualstream.solvers import CorruptState, resolve_spec
from tests.service.conftest import SPEC, assert_problem


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_routes_of_a_feature_are_in_the_table_of_scopes(feature: Feature):
    methods = defaultdict(set)
    for router in feature.routers:
        for route in router.routes:
            methods[route.path.replace(":path}", "}")] |= route.methods
    assert methods == {
        path: set(scopes) for path, scopes in FEATURE_SCOPES.get(feature.name, {}).items()
    }


@pytest.mark.parametrize("absent", FEATURES, ids=lambda feature: feature.name)
def test_server_works_without_a_feature(serve, absent: Feature):
    features = without(absent.name)
    client = serve(features=features)
    assert client.put("/models/m", json=SPEC).status_code == 201
    rows = {"x": [[1, 0, 0, 2, 0], [0, 1, 0, 0, 3]], "y": [1, -1]}
    assert client.post("/models/m/learn", json=rows).status_code == 200
    learned = digest_and_scores(client)
    assert digest_and_scores(serve(features=features)) == learned
    for path, methods in FEATURE_SCOPES.get(absent.name, {}).items():
        for method in methods:
            filled = re.sub(r"\{\w+\}", "m", path)
            answer = client.request(method, filled)
            assert answer.status_code == 404, filled
            assert answer.json()["detail"] == f"this server lacks the feature {absent.name!r}"
            operations = client.get("/openapi.json").json()["paths"].get(path, {})
            assert method.lower() not in operations


def without(name: str) -> tuple[Feature, ...]:
    return tuple(feature for feature in FEATURES if feature.name != name)


FIELDS = {
    "alert_rate": {"alert_rate": 0.01},
    "costs": {"costs": {"false_negative": 5}, "loss": "logistic"},
    "guard": {"guard": {"mode": "pause"}},
    "intervals": {"intervals": {"coverage": 0.9}},
    "refit": {"refit": {"every": 100}},
    "history": {
        "history": [{"by": "card", "labels": 1}],
        "columns": {"types": {"card": "category"}},
        "features": "hashed",
    },
    "segments": {
        "segments": ["country"],
        "columns": {"types": {"country": "category"}},
        "features": "hashed",
    },
}


@pytest.mark.parametrize("field", FEATURE_FIELDS)
def test_field_of_an_absent_feature_is_refused(serve, field):
    name, spec = FEATURE_FIELDS[field], SPEC | FIELDS[field]
    assert serve().put("/models/old", json=spec).status_code == 201
    client = serve(features=without(name))
    reason = f"left out, as this server lacks the feature {name!r}"
    problem = assert_problem(client.put("/models/m", json=spec), 422, "invalid-spec")
    assert reason in problem["detail"]
    assert reason in client.post("/specs/resolve", json=spec).json()["errors"][0]["reason"]
    assert reason in assert_problem(client.get("/models/old"), 503, "unreadable-journal")["detail"]
    assert client.put("/models/m", json=SPEC).status_code == 201


def test_fields_of_features_belong_to_features():
    assert {feature.name for feature in FEATURES} >= set(FEATURE_FIELDS.values())


def test_array_of_an_absent_feature_is_a_corrupt_state():
    spec = canonical(resolve_spec(SPEC))
    record = ModelRecord("m", "0" * 32, spec, spec, 0, 0, "")
    captured = Replica(record, ALL).capture()
    captured.arrays["retained.ages"] = np.zeros(0, np.int64)
    snapshot = captured.encode()
    with pytest.raises(CorruptState, match=r"arrays of no installed feature: \['retained'\]"):
        Replica(record, Features(without("unlearning"))).restore(snapshot)


def digest_and_scores(client: TestClient) -> tuple[str, list[float]]:
    digest = client.get("/models/m?digest=true").json()["state_digest"]
    return digest, client.post("/models/m/predict", json={"x": [[1, 1, 1, 1, 1]] * 2}).json()[
        "scores"
    ]
