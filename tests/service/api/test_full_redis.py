"""A Redis at `maxmemory`: nothing is learned, and everything that makes room can be deleted."""

from collections.abc import Iterator

import pytest
import redis
from starlette.testclient import TestClient

from tests.redis_server import redis_or_skip
from tests.service.conftest import Serve, assert_problem

SPEC = {"algorithm": "dual_ascent", "features": {"kind": "indexed", "dim": 5}}
ROW = {"x": {"1": 1.0}, "y": 1, "id": "a"}


@pytest.fixture
def full(serve: Serve) -> Iterator[tuple[TestClient, redis.Redis]]:
    """A server with a full model `m`, and its store, which takes no more."""
    with redis_or_skip() as server, redis.Redis.from_url(server.url) as store:
        client = serve(store=server.url, snapshot_every=1)
        assert client.put("/models/m", json=SPEC).status_code == 201
        for number in range(5):
            learned = client.post("/models/m/learn", json=ROW | {"id": str(number)})
            assert learned.status_code == 200, learned.text
        for name in ("one", "two"):
            assert client.post("/models/m/versions", json={"name": name}).status_code == 201
        back = client.post("/models/m/rollback", json={"version": "one"})
        assert back.status_code == 200, back.text
        waiting = {"x": {"1": 1.0}, "id": "b"}
        assert client.post("/models/m/predict?remember=true", json=waiting).status_code == 200
        store.config_set("maxmemory", "1")
        refused = client.post("/models/m/learn", json=ROW | {"id": "c"})
        assert_problem(refused, 503, "store-unavailable")
        yield client, store


def test_a_version_and_a_model_with_versions_can_be_deleted(full) -> None:
    client, store = full
    deleted = client.delete("/models/m/versions/two")
    assert deleted.status_code == 204, deleted.text
    assert [v["name"] for v in client.get("/models/m/versions").json()["versions"]] == ["one"]
    deleted = client.delete("/models/m")
    assert deleted.status_code == 204, deleted.text
    assert client.get("/models/m").status_code == 404
    kept = {key for key in store.scan_iter() if b"{m}" in key}
    assert kept <= {b"ds:{m}:audit"}
    store.config_set("maxmemory", "0")
    actions = [change["action"] for change in client.get("/audit?model=m").json()["changes"]]
    assert actions[-2:] == ["version_delete", "delete"]


def test_a_deletion_with_if_match_and_a_repeated_one_go_through(full) -> None:
    client, _ = full
    etag = client.get("/models/m").headers["etag"]
    assert client.delete("/models/m", headers={"if-match": '"1-x"'}).status_code == 412
    assert client.delete("/models/m", headers={"if-match": etag}).status_code == 204
    assert client.delete("/models/m").status_code == 404


def test_room_that_was_made_is_used(full) -> None:
    client, store = full
    assert client.delete("/models/m").status_code == 204
    store.config_set("maxmemory", "100mb")
    assert client.put("/models/m", json=SPEC).status_code == 201
    assert client.post("/models/m/learn", json=ROW).status_code == 200
