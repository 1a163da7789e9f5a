"""A model of an older store: its specification has a removed field, and no version."""

import pytest

from dualstream.service.models import registry as registry_module
from dualstream.service.replica.spec import fixed_spec
from dualstream.solvers import Progressive, make_learner, resolve_spec
from tests.service.conftest import SPEC, assert_problem

OLD = {**SPEC, "compare_windows": True}


def learn(client, first: int, last: int) -> None:
    rows = [{"x": [n % 2, n % 3, 1, 0, 0], "y": n % 2} for n in range(first, last)]
    assert client.post("/models/m/learn", json={"samples": rows}).status_code == 200


@pytest.fixture
def old(monkeypatch):
    """Models are created as older versions did."""
    canonical = registry_module.canonical

    def old_text(spec):
        kept = {name: value for name, value in spec.items() if name != "spec_version"}
        return canonical(kept | {"compare_windows": True})

    monkeypatch.setattr(registry_module, "canonical", old_text)
    return monkeypatch


def test_a_stored_model_opens_and_learns(serve, store, old):
    state, restore = Progressive.state, Progressive.restore
    # Snapshots of older versions hold arrays of the windows, too.
    old.setattr(Progressive, "state", lambda self: state(self) | {"windows.x": self._counted.rows})
    one = serve(store=store, snapshot_every=20)
    assert one.put("/models/m", json=SPEC).status_code == 201
    learn(one, 0, 50)
    assert one.post("/models/m/versions", json={"name": "v"}).status_code == 201
    before = one.post("/models/m/predict", json={"x": [1, 0, 1, 0, 0]}).json()
    old.undo()

    seen = []
    old.setattr(Progressive, "restore", lambda self, a: seen.append(set(a)) or restore(self, a))
    other = serve(store=store)
    assert other.post("/models/m/predict", json={"x": [1, 0, 1, 0, 0]}).json() == before
    assert any("windows.x" in names for names in seen)
    learn(other, 50, 60)
    assert other.post("/models/m/rollback", json={"version": "v"}).status_code == 200
    view = other.get("/models/m").json()
    assert view["samples"] == 50 and "compare_windows" not in view["spec"]
    assert view["spec"]["spec_version"] == 1
    assert other.get("/models").json()["models"][0]["spec"] == view["spec"]
    # The same specification without the field is the same model, with defaults given or not.
    for given in (SPEC, SPEC | {"seed": 0}, SPEC | {"seed": 0, "spec_version": 1}):
        assert other.put("/models/m", json=given).status_code == 200
    assert_problem(other.put("/models/m", json=SPEC | {"spec_version": 2}), 409, "conflict")
    refused = assert_problem(other.put("/models/m", json=OLD), 422, "invalid-spec")
    assert "create a portfolio whose members differ in `window`" in refused["detail"]


def test_a_stored_specification_is_read_without_the_field():
    first = resolve_spec(SPEC | {"spec_version": 1})
    text = registry_module.canonical(first | {"compare_windows": True})
    assert fixed_spec(text) == first
    make_learner(fixed_spec(text))
