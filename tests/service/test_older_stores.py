"""Stores written before the modules moved open with equal digests and learn the same states."""

import json
import os
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from dualstream.service.server.app import create_app
from dualstream.service.settings import Settings
from dualstream.solvers import numeric_identity
from tests.redis_server import NoRedis, RedisServer

DATA = Path(__file__).parents[2] / "tests" / "data"
EXPECTED = json.loads((DATA / "expected.json").read_text())
MODELS: dict[str, dict[str, Any]] = EXPECTED["models"]
IS_SAME_MACHINE = EXPECTED["identity"] == numeric_identity()
LETTERS = "abcdefgh"


def rows(spec: dict[str, Any], first: int, n: int) -> list[dict[str, Any]]:
    """The rows that the stores were made of: short decimals by a formula."""
    found = []
    for k in range(first, first + n):
        x: Any = {
            str(j): ((k * 7 + j * 5 + j * k * 3) % 23 - 11) / 4 for j in range(1, 13) if (k + j) % 3
        }
        margin = x.get("1", 0) - 2 * x.get("4", 0) + x.get("6", 0)
        task = spec.get("task", "binary")
        y: Any = int(margin + (k % 4) / 4 > 0)
        if task == "regression":
            y = margin / 2 + (k % 5) / 8
        elif task == "multiclass":
            y = "abc"[k % 3]
        if spec.get("features", {}).get("kind") == "indexed":
            x = [x.get(str(j), 0.0) for j in range(1, spec["features"]["dim"] + 1)]
        else:
            x = {f"f{j}": value for j, value in x.items()}
            x |= {"site": LETTERS[k % 8], "mobile": k % 2 == 0}
        row = {"x": x, "y": y}
        if k % 4 == 0:
            row["weight"] = 1 + (k % 3) / 2
        found.append(row)
    return found


def opened(url: str) -> TestClient:
    # Keys and pending rows do not expire, as when the store was written.
    lasting = {"key_ttl_s": 10**9, "remember_s": 10**9}
    settings = Settings(store=url, snapshot_every=30, adopt=not IS_SAME_MACHINE, **lasting)
    return TestClient(create_app(settings))


@pytest.fixture(params=["sqlite", "redis"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TestClient]:
    with tarfile.open(DATA / f"{request.param}.tar.xz") as archive:
        # Debian's Python 3.11.2 has no filters.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path)
    server = None
    url = f"sqlite:///{tmp_path / 'store.db'}"
    if request.param == "redis":
        server = RedisServer(str(tmp_path), appendfsync="always")
        try:
            server.start()
        except NoRedis:
            assert "CI" not in os.environ, "CI needs a redis-server"
            pytest.skip("no redis-server")
        url = server.url
    try:
        with opened(url) as client:
            deadline = time.monotonic() + 120
            while client.get("/readyz").status_code != 200:
                assert time.monotonic() < deadline, client.get("/readyz").text
                time.sleep(0.02)
            yield client
    finally:
        if server is not None:
            server.stop()


def assert_state(client: TestClient, name: str, expected: dict[str, Any]) -> None:
    view = client.get(f"/models/{name}?digest=true").json()
    found = {key: view[key] for key in expected}
    if not IS_SAME_MACHINE:  # other bits are right there
        found["state_digest"] = expected["state_digest"]
    assert found == expected, name


def test_states_keys_versions_and_pending_rows_are_as_they_were(client):
    for name, model in MODELS.items():
        assert_state(client, name, model["before"])
        # A key used before is known.
        body = {"samples": rows(model["spec"], 0, 20)}
        again = client.post(
            f"/models/{name}/learn", json=body, headers={"idempotency-key": "key-0"}
        )
        assert again.status_code == 200 and again.json()["duplicate"], (name, again.text)
        assert_state(client, name, model["before"])
    found = client.get("/models/named-portfolio/versions").json()["versions"]
    assert [one["name"] for one in found] == ["tuesday"]
    for name, model in MODELS.items():
        body = {"samples": rows(model["spec"], 100, 10)}
        assert client.post(f"/models/{name}/learn", json=body).status_code == 200
    labels = {"labels": [{"id": "late-1", "y": 1}]}
    assert client.post("/models/named-hinge/labels", json=labels).json()["learned"] == 1
    for name, model in MODELS.items():
        assert_state(client, name, model["after"])
