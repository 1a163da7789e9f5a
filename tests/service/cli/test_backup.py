"""docs/operate/backup.md's commands back a store up while it learns, and restore it elsewhere."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from starlette.testclient import TestClient

from dualstream.service.server.app import create_app
from dualstream.service.settings import Settings
from tests.docs.documents import DOCUMENTS
from tests.redis_server import UNPACKED, redis_or_skip
from tests.redis_sets import FORMING_MS, cluster_or_skip, until as reached
from tests.support import until

SECTIONS = DOCUMENTS["docs/operate/backup.md"].partition("\n## Archives")[0]
TO_SQLITE, FROM_SQLITE, TO_REDIS, FROM_REDIS, TO_CLUSTER, FROM_CLUSTER = re.findall(
    r"^```sh\n(.*?)^```", SECTIONS, re.M | re.S
)
SPEC = {"algorithm": "dual_ascent", "features": {"kind": "hashed", "bits": 10}}


def run(script: str, folder: Path, *ports: int) -> None:
    """The commands as they are written, in this folder; Redis' on ports of the test's own."""
    script = script.replace("python3", sys.executable)
    if len(ports) == 1:
        script = script.replace("redis-cli", f"redis-cli -p {ports[0]}")
        script = script.replace("redis-server", f"redis-server --port {ports[0]}")
    script = script.replace("7001 7002 7003", " ".join(map(str, ports)))
    libraries = ":".join(str(path) for path in (UNPACKED / "usr" / "lib").glob("*-linux-gnu"))
    path = f"{os.environ['PATH']}:{UNPACKED / 'usr' / 'bin'}"
    tools = {} if shutil.which("redis-server") else {"PATH": path, "LD_LIBRARY_PATH": libraries}
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env=os.environ | tools,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def served(store: str) -> TestClient:
    return TestClient(create_app(Settings(store=store)))


def learn(client: TestClient, key: str) -> dict:
    until(lambda: client.get("/readyz").status_code == 200, 60)
    rows = [{"x": {"age": float(len(key) + k)}, "y": k % 2, "id": f"{key}-{k}"} for k in range(5)]
    headers = {"idempotency-key": key}
    got = client.post("/models/m/learn", json={"samples": rows}, headers=headers)
    assert got.status_code == 200, got.text
    return got.json()


def backed_up(store: str, command: str, folder: Path, *ports: int) -> tuple[str, dict]:
    """What the model's state is called at the backup, and its first answer; it goes on learning."""
    with served(store) as client:
        until(lambda: client.get("/readyz").status_code == 200, 60)
        assert client.put("/models/m", json=SPEC).status_code == 201
        first = learn(client, "before")
        assert client.post("/models/m/versions", json={"name": "monday"}).status_code == 201
        etag = client.get("/models/m").headers["etag"]
        run(command, folder, *ports)
        learn(client, "after")
    return etag, first


def assert_restored(store: str, etag: str, first: dict) -> None:
    """It is what it was, knows what it has learned, and not what came later."""
    with served(store) as client:
        again = learn(client, "before")
        assert client.get("/models/m").headers["etag"] == etag
        assert again == first | {"duplicate": True}
        assert [one["name"] for one in client.get("/models/m/versions").json()["versions"]] == [
            "monday"
        ]
        later = learn(client, "after")
        assert (later["seq"], later["learned"], later["duplicate"]) == (10, 5, False)


def test_sqlite_comes_back_as_it_was_at_the_backup(tmp_path):
    store = f"sqlite:///{tmp_path / 'dualstream.db'}"
    etag, first = backed_up(store, TO_SQLITE, tmp_path)
    run(FROM_SQLITE, tmp_path)
    assert_restored(store, etag, first)


def test_redis_comes_back_with_its_append_only_file(tmp_path):
    with redis_or_skip() as redis:
        etag, first = backed_up(redis.url, TO_REDIS, tmp_path, redis.port)
        redis.kill()
        run(FROM_REDIS, tmp_path, redis.port)
        # The folder, under a server that reads its append-only file alone.
        (tmp_path / "restored" / "dump.rdb").unlink(missing_ok=True)
        redis.directory = str(tmp_path / "restored")
        redis.start()
        assert_restored(redis.url, etag, first)


def test_a_cluster_comes_back_of_its_primaries(tmp_path):
    with cluster_or_skip(replicas=False, node_timeout_ms=FORMING_MS) as cluster:
        ports = [server.port for server in cluster.servers]
        etag, first = backed_up(cluster.url, TO_CLUSTER, tmp_path, *ports)
        for server in cluster.servers:
            server.kill()
        run(FROM_CLUSTER, tmp_path, *ports)
        for server in cluster.servers:
            server.directory = str(tmp_path / f"restored-{server.port}")
            (tmp_path / f"restored-{server.port}" / "dump.rdb").unlink(missing_ok=True)
            server.start()
        reached(cluster.is_whole, "the restored nodes to know each other")
        assert_restored(cluster.url, etag, first)


def test_a_backup_is_none_of_the_file_alone(tmp_path):
    """Why the document says so: what was acknowledged last is not in it."""
    store = f"sqlite:///{tmp_path / 'dualstream.db'}"
    backed_up(store, "cp dualstream.db backup.db", tmp_path)
    run(FROM_SQLITE, tmp_path)
    with served(store) as client:
        until(lambda: client.get("/readyz").status_code == 200, 60)
        assert client.get("/models/m").status_code == 404
