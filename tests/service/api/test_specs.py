"""POST /specs/resolve says what a model of the spec would have, and makes none."""

import pytest

from tests.service.conftest import assert_problem


@pytest.mark.parametrize(
    "spec", [{}, {"task": "regression"}, {"algorithm": "rda", "features": "hashed"}]
)
def test_the_resolved_spec_is_that_of_a_model(client, spec):
    got = client.post("/specs/resolve", json=spec).json()
    assert got["errors"] == []
    assert client.get("/models").json()["models"] == []
    assert client.put("/models/m", json=spec).json()["spec"] == got["spec"]


def test_what_a_put_refuses_is_shown_with_its_field(client):
    spec = {"algorithm": "dual_ascent", "features": "hashed", "rho": -1}
    got = client.post("/specs/resolve", json=spec).json()
    refused = client.put("/models/m", json=spec).json()
    assert got == {"spec": None, "errors": [{"pointer": "/rho", "reason": refused["detail"]}]}


def test_a_spec_whose_rows_take_more_than_a_second_is_refused_with_the_estimate(client):
    spec = {
        "algorithm": "dual_ascent",
        "regularizer": "entropy",
        "replay": {"steps": 100},
        "features": {"kind": "hashed", "bits": 20},
    }
    refused = assert_problem(client.put("/models/m", json=spec), 422, "invalid-spec")
    assert refused["errors"][0]["pointer"] == "/replay"
    assert "estimated to take" in refused["detail"] and "limit is 1 s" in refused["detail"]
    got = client.post("/specs/resolve", json=spec).json()
    assert got["errors"] == [{"pointer": "/replay", "reason": refused["detail"]}]
    cheap = {"algorithm": "portfolio", "features": spec["features"]}
    assert client.put("/models/m", json=cheap).status_code == 201
    member = {key: value for key, value in spec.items() if key != "features"}
    assert_problem(client.post("/models/m/members", json=member), 422, "invalid-spec")


def test_broken_json_is_a_problem(client):
    assert client.post("/specs/resolve", content=b"{").status_code == 400


def test_the_pages_load_nothing_from_elsewhere_and_run_no_script_of_their_own(client):
    for path in ("/", "/docs"):
        page = client.get(path)
        assert page.status_code == 200
        assert "://" not in page.text
        assert "script-src 'self';" in page.headers["content-security-policy"]
        assert page.text.count("<script") == page.text.count("<script src=")
    assert client.get("/static/js/main.js").headers["x-content-type-options"] == "nosniff"
    assert client.get("/static/../app.py").status_code == 404
    assert client.get("/static/%2e%2e/app.py").status_code == 404


def test_a_single_learner_with_a_penalised_intercept_warns_of_its_probabilities(client):
    single = {"algorithm": "dual_ascent", "loss": "logistic"}
    warned = {
        "single": (single, 1),
        "hinge": (single | {"loss": "hinge"}, 0),
        "without": (single | {"intercept": False}, 0),
        "prior": (single | {"intercept": "prior"}, 0),
        "portfolio": ({}, 0),
        "asset": (single | {"algorithm": "asset"}, 0),
        "numbers": ({"algorithm": "sgd", "task": "regression"}, 0),
    }
    for name, (spec, count) in warned.items():
        answer = client.put(f"/models/{name}", json=spec)
        assert answer.status_code == 201, answer.text
        assert len(answer.json().get("warnings", [])) == count, name
        assert "warnings" not in client.get(f"/models/{name}").json()
