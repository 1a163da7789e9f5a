"""Any optional feature can be absent: the server works without it, and its routes say so."""

import re
from collections import defaultdict

import pytest
from starlette.testclient import TestClient

from dualstream.service.features import FEATURES
from dualstream.service.features.feature import Feature
from dualstream.service.http.access import FEATURE_SCOPES
from tests.service.conftest import SPEC


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
    features = tuple(feature for feature in FEATURES if feature is not absent)
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


def digest_and_scores(client: TestClient) -> tuple[str, list[float]]:
    digest = client.get("/models/m?digest=true").json()["state_digest"]
    return digest, client.post("/models/m/predict", json={"x": [[1, 1, 1, 1, 1]] * 2}).json()[
        "scores"
    ]
