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


def test_a_new_model_warns_of_rare_classes_and_of_windows_beyond_memory(client):
    single = {"algorithm": "dual_ascent", "loss": "logistic"}
    warned = {
        "single": (single, 1),
        "hinge": (single | {"loss": "hinge"}, 0),
        "without": (single | {"intercept": False}, 0),
        "prior": (single | {"intercept": "prior"}, 0),
        "portfolio": ({}, 0),
        "asset": (single | {"algorithm": "asset"}, 0),
        "numbers": ({"algorithm": "sgd", "task": "regression"}, 0),
        "trees": ({"algorithm": "boosted"}, 0),
        "long": ({"algorithm": "boosted", "window": 20_000}, 1),
        "members": ({"members": [{"algorithm": "boosted", "window": 20_000}]}, 1),
    }
    for name, (spec, count) in warned.items():
        answer = client.put(f"/models/{name}", json=spec)
        assert answer.status_code == 201, answer.text
        assert len(answer.json().get("warnings", [])) == count, name
        assert "warnings" not in client.get(f"/models/{name}").json()


def test_boosted_trees_name_the_rows_that_memory_has_room_for(client):
    trees = {"algorithm": "boosted", "window": 20_000}
    for name, spec in (("trees", trees), ("members", {"members": [trees, {"kind": "prior"}]})):
        client.put(f"/models/{name}", json=spec)
        rows = [{"x": {f"n{i}": 1.0 for i in range(count)}, "y": 1} for count in (3, 128)]
        for row, room in zip(rows, (20_000, 16_384), strict=True):
            assert client.post(f"/models/{name}/learn", json=row).status_code == 200
            view = client.get(f"/models/{name}").json()
            if name == "members":
                assert "rows_held_at_most" not in view
                view, other = client.get("/models/members/members").json()["members"]
                assert "rows_held_at_most" not in other
            assert (view["spec"]["window"], view["rows_held_at_most"]) == (20_000, room)
    wide = {**trees, "features": {"kind": "indexed", "dim": 128}}
    problem = assert_problem(client.put("/models/wide", json=wide), 422, "invalid-spec")
    assert "[32, 16384]" in problem["detail"]


def test_a_large_memory_counts_before_it_is_filled(serve):
    client = serve(max_model_bytes=9_000_000)
    features = {"kind": "indexed", "dim": 100}
    answer = client.put("/models/large", json={"memory": "large", "features": features})
    assert_problem(answer, 422, "model-too-large")
    assert client.put("/models/standard", json={"features": features}).status_code == 201
    trees = {"algorithm": "boosted", "window": 65_536, "memory": "large"}
    added = client.post("/models/standard/members", json=trees)
    assert_problem(added, 422, "model-too-large")
