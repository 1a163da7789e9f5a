"""Every change that is asked for over HTTP is in the log, with the key that asked."""

import json
import time
from typing import Any

import pytest
from typer.testing import CliRunner

import dualstream.service.features.refits.job
from dualstream.client import Client
from dualstream.service import cli
from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.http.access import REQUIRED_SCOPES
from dualstream.service.http.api_keys import KeyScope, new_key
from tests.service.conftest import SPEC, assert_problem

KEYS = {
    "owner": new_key("owner", "admin"),
    "ads": new_key("ads-owner", "admin", ("ads-*",)),
    "learn": new_key("producer", "learn"),
}
LINES = ";".join(key.line() for _, key in KEYS.values())
OF_MODEL = "/models/{model_id}"
PORTFOLIO = {
    "algorithm": "portfolio",
    "members": [{"name": "a", **SPEC}, {"name": "b", **SPEC, "rho": 0.5}],
    "features": SPEC["features"],
}


def by(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name][0]}"}


class Asking:
    """Asks an application, and notes which routes have changed something."""

    def __init__(self, client: Any) -> None:
        self._client, self.routes = client, set()

    def __call__(self, method: str, route: str, **options: Any) -> Any:
        positions = {"model_id": options.pop("model", "m"), **options.pop("places", {})}
        self.routes.add((method, route))
        answer = self._client.request(
            method,
            route.format(**positions),
            headers=by("owner") | options.pop("headers", {}),
            **options,
        )
        assert answer.status_code < 300, (method, route, answer.text)
        return answer.json() if answer.content else None


@pytest.fixture
def keyed(serve):
    return serve(keys=LINES)


def changes(client: Any, model: str, name: str = "owner", **options: Any) -> list[dict]:
    answer = client.get("/audit", params={"model": model, **options}, headers=by(name))
    assert answer.status_code == 200, answer.text
    return answer.json()["changes"]


def test_each_route_that_changes_a_model_is_shown_of_with_the_key_that_asked(keyed, monkeypatch):
    ask = Asking(keyed)
    ask("PUT", OF_MODEL, json=SPEC)
    for id_ in ("s", "t"):
        sample = {"x": [1, 0, 0, 0, 0], "y": 1, "id": id_}
        keyed.post("/models/m/learn", json=sample, headers=by("learn"))
    for _ in range(2):
        ask("POST", f"{OF_MODEL}/versions", json={"name": "v"})
    key = {"idempotency-key": "once"}
    for _ in range(2):
        ask("POST", f"{OF_MODEL}/rollback", json={"version": "v"}, headers=key)
    ask("DELETE", f"{OF_MODEL}/versions/{{name}}", places={"name": "v"})
    job = ask("POST", f"{OF_MODEL}/refit", json={"tol": 0.1})["job"]
    deadline = time.monotonic() + 60
    while keyed.get(f"/models/m/refits/{job}", headers=by("owner")).json()["status"] != "done":
        assert time.monotonic() < deadline
    monkeypatch.setattr(
        dualstream.service.features.refits.job, "_solve", lambda *args: args[-1].wait()
    )
    long = ask("POST", f"{OF_MODEL}/refit")["job"]
    ask("DELETE", f"{OF_MODEL}/refits/{{job}}", places={"job": long})
    ask("DELETE", f"{OF_MODEL}/samples/{{sample_id}}", places={"sample_id": "s"})
    for method, args in {"PUT": {"json": {"next": 7}}, "DELETE": {}}.items():
        ask(method, f"{OF_MODEL}/sources/{{name}}", places={"name": "topic/0"}, **args)
    ask("PUT", OF_MODEL, json=SPEC | {"rho": 0.5}, headers={"if-match": "*"})
    ask("DELETE", OF_MODEL)
    result = changes(keyed, "m")
    got = [(one["action"], one["seq"]) for one in result]
    assert got == [
        ("create", 0), ("version", 2), ("rollback", 3), ("version_delete", 3), ("refit_begin", 3),
        ("refit", 4), ("refit_begin", 4), ("refit_cancel", 4), ("unlearn", 5),
        ("source_set", 5), ("source_forget", 5),
        ("replace", 0), ("delete", 0),
    ]  # fmt: skip
    owner = KEYS["owner"][1]
    assert {(one["by"], one["key"], one["key_id"]) for one in result} == {
        ("request", "owner", owner.digest.hex()[:16])
    }
    assert result[2]["detail"]["version"] == "v" and result[-2]["detail"]["algorithm"]
    assert KEYS["owner"][0] not in json.dumps(result)

    ask("PUT", OF_MODEL, model="w", json={"algorithm": "sgd"})
    ask("PUT", f"{OF_MODEL}/weights", model="w", json={"weights": {"a": 1}, "rows": 9})
    assert [(one["action"], one["seq"]) for one in changes(keyed, "w")] == [
        ("create", 0), ("refit", 1),
    ]  # fmt: skip

    ask("PUT", OF_MODEL, model="p", json=PORTFOLIO)
    member, named = f"{OF_MODEL}/members", {"name": "b"}
    ask("POST", member, model="p", json={"name": "c", "algorithm": "sgd"})
    ask("POST", f"{member}/{{name}}/promote", model="p", places=named)
    ask("DELETE", f"{OF_MODEL}/promotion", model="p")
    ask("DELETE", f"{member}/{{name}}", model="p", places=named)
    result = changes(keyed, "p")
    actions = ["create", "member_add", "promote", "demote", "member_remove"]
    assert [one["action"] for one in result] == actions
    assert result[1]["detail"]["name"] == "c" and result[1]["detail"]["algorithm"] == "sgd"

    tight = {"mode": "pause", "every": 2, "after": 10, "patience": 1}
    ask("PUT", OF_MODEL, model="g", json=SPEC | {"guard": tight})
    rows = [{"x": [2, 0, 0, 0, 0], "y": int(n < 30)} for n in range(40)]
    keyed.post("/models/g/learn", json={"samples": rows}, headers=by("learn"))
    ask("POST", f"{OF_MODEL}/resume", model="g", params={"rows": "drop"})
    result = changes(keyed, "g")
    got = [(one["action"], one["by"], one["seq"]) for one in result]
    assert got == [("create", "request", 0), ("pause", "server", 41), ("resume", "request", 42)]
    assert result[1]["detail"].keys() == {"since", "seq", "digest"}
    assert result[2]["detail"] == {"since": result[1]["detail"]["since"], "rows": "drop"}
    changing = {
        (method, route)
        for route, methods in REQUIRED_SCOPES.items()
        for method, scope in methods.items()
        if scope is KeyScope.ADMIN and method != "GET" and route != "/columns/infer"
    }
    assert ask.routes == changing, "of a route that is new: let it be told of, here too"


def test_audit_log_shows_only_models_of_the_access_key(keyed):
    for model in ("ads-1", "news-1", "ads-2"):
        assert keyed.put(f"/models/{model}", json=SPEC, headers=by("owner")).status_code == 201
    assert_problem(keyed.get("/audit", headers=by("learn")), 403, "forbidden")
    for model in ("news-1", "news-2"):  # one is there
        answer = keyed.get(f"/audit?model={model}", headers=by("ads"))
        assert_problem(answer, 404, "unknown-model")
    assert_problem(keyed.get("/audit?model=news-2", headers=by("owner")), 404, "unknown-model")
    assert_problem(keyed.get("/audit?after=x", headers=by("owner")), 422, "invalid-request")
    first = keyed.get("/audit?limit=1", headers=by("ads")).json()
    rest = keyed.get("/audit", params={"after": first["next"]}, headers=by("ads")).json()
    models = [one["model"] for one in first["changes"] + rest["changes"]]
    assert models == ["ads-1", "ads-2"] and rest["next"] is None
    assert changes(keyed, "ads-1", after=first["next"]) == []


def test_without_keys_nobody_is_named_and_the_command_tells_of_it(shared_server: ServerProcess):
    with Client(shared_server.url) as client:
        client.create("got", SPEC)
        client.delete("got")
        result = client.audit("got")
        assert [(one.action, one.by, one.key) for one in result] == [
            ("create", "request", None),
            ("delete", "request", None),
        ]
        assert client.audit("got", after=result[0].place) == result[1:]
    done = CliRunner().invoke(cli.app, ["audit", "got", "--url", shared_server.url])
    assert done.exit_code == 0 and "create" in done.output and "got" in done.output


def test_changes_without_effect_are_listed_as_refused(keyed):
    ask = Asking(keyed)
    ask("PUT", OF_MODEL, json=PORTFOLIO)
    ask("POST", f"{OF_MODEL}/members/{{name}}/promote", places={"name": "a"})
    admin = by("owner")
    spec = {"algorithm": "dual_ascent", "rho": 0.25}
    added = keyed.post("/models/m/members", json=spec, headers=admin)
    assert_problem(added, 409, "conflict")
    assert_problem(keyed.delete("/models/m/members/b", headers=admin), 409, "conflict")
    ask("DELETE", f"{OF_MODEL}/promotion")
    for number in range(2, 64):
        spec = {"name": f"n{number}", "algorithm": "dual_ascent", "rho": number}
        ask("POST", f"{OF_MODEL}/members", json=spec)
    spec = {"name": "last", "algorithm": "dual_ascent", "rho": 99.0}
    last = keyed.post("/models/m/members", json=spec, headers=admin)
    assert_problem(last, 409, "conflict")
    listed = changes(keyed, "m")
    refused = [one for one in listed if one["outcome"] == "refused"]
    assert [one["action"] for one in refused] == ["member_add", "member_remove", "member_add"]
    assert [one["detail"].get("name") for one in refused] == [None, "b", "last"]
    assert "'a' is promoted" in refused[0]["reason"] and "'a' is promoted" in refused[1]["reason"]
    assert "maximum is 64" in refused[2]["reason"]
    seqs = [one["seq"] for one in listed if one["outcome"] == "done"]
    assert seqs == list(range(65)), "refused changes take no seq"
    assert [one["seq"] for one in refused] == [1, 1, 64]
    assert {one["key"] for one in refused} == {"owner"}
    assert {one["outcome"] for one in listed} == {"done", "refused"}
    assert all(one["reason"] is None for one in listed if one["outcome"] == "done")
    everything = keyed.get("/audit", headers=admin).json()["changes"]
    assert [one for one in everything if one["outcome"] == "refused"] == refused


def test_refusals_are_listed_after_a_restart_and_not_of_a_model_that_is_gone(serve, store):
    first = serve(store=store)
    assert first.put("/models/m", json=PORTFOLIO).status_code == 201
    first.post("/models/m/members/a/promote")
    assert_problem(first.delete("/models/m/members/b"), 409, "conflict")
    again = serve(store=store)
    result = again.get("/audit?model=m").json()["changes"]
    assert [one["outcome"] for one in result] == ["done", "done", "refused"]
    assert again.delete("/models/m").status_code == 204
    result = again.get("/audit?model=m").json()["changes"]
    assert [one["outcome"] for one in result] == ["done", "unknown", "refused", "done"]
