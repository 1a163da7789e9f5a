"""The command of the pods without Kubernetes: another user, a read-only root, their variables."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from dualstream.service.http.api_keys import new_key
from dualstream.solvers import jit
from tests.kubernetes.rendered import OVERLAYS, ROOT, container, environment, pod
from tests.ports import free_port
from tests.redis_server import redis_or_skip
from tests.support import until

# Arguments: this repository, a folder of secrets, a folder of kernels, the script, its arguments.
# The user may read all files, also of a private checkout, and may write as it may in a pod.
CONFINED = """
set -e
root=$1 secret=$2 kernels=$3 script=$4; shift 4
mount -t tmpfs -o mode=755 none /mnt
mkdir /mnt/root /mnt/kernels /mnt/data
mount --bind "$root" /mnt/root
mount --bind "$kernels" /mnt/kernels
cp -R "$secret" /mnt/secret
chown -R 0:10001 /mnt/secret
chown "$DATA_OWNER" /mnt/data
mount -t tmpfs -o mode=1777 none /tmp
mkdir -p "$root"
mount --bind /mnt/root "$root"
mount -o remount,bind,ro "$root"
mount -o remount,bind,ro /
cd /mnt/data
unset DATA_OWNER
reads=-all,+dac_read_search
exec setpriv --reuid 10001 --regid 10001 --clear-groups --no-new-privs --bounding-set=$reads \\
  --inh-caps=$reads --ambient-caps=$reads sh -c "$script" entrypoint "$@"
"""


def placed(text: str) -> str:
    """Paths of the image, where this test can mount them."""
    text = text.replace("/etc/dualstream", "/mnt/secret")
    return re.sub(r"(?<![\w/])/data|(?<=sqlite:///)/data", "/mnt/data", text)


@contextmanager
def running(overlay: str, secret: Path, log: Path, **changed: str) -> Iterator[Any]:
    """The container's process, which sees no variables but those of the manifest."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        assert not os.environ.get("CI"), "unshare --mount needs root"
        pytest.skip("unshare --mount needs root")
    script = placed((ROOT / "deploy" / "entrypoint.sh").read_text())
    variables = {name: placed(value) for name, value in environment(overlay).items()}
    mounts = {one["mountPath"] for one in container(overlay)["volumeMounts"]}
    variables |= {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin:/sbin"}
    # Of the image. The user may only read it.
    variables |= {"DUALSTREAM_CACHE_DIR": "/mnt/kernels"}
    variables |= {"DATA_OWNER": "10001" if "/data" in mounts else "0", **changed}
    kernels = jit._cache_root()
    command = ["unshare", "--mount", "sh", "-c", CONFINED, "sh", str(ROOT), str(secret)]
    command += [str(kernels), script, *container(overlay)["args"]]
    with log.open("w") as said:
        process = subprocess.Popen(command, env=variables, stdout=said, stderr=said)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def secret_files(folder: Path, store: str) -> tuple[str, str]:
    """Write the secret's files as the page says; returns the keys of an admin and of Prometheus."""
    folder.mkdir()
    (admin, one), (scrape, other) = new_key("admin", "admin"), new_key("p", "predict")
    (folder / "keys").write_text(f"{one.line()}\n{other.line()}\n")
    (folder / "scrape-key").write_text(scrape)
    (folder / "store").write_text(store)
    for path in folder.iterdir():
        path.chmod(0o440)
    return admin, scrape


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_command_of_the_pod_serves_and_drains(overlay, tmp_path):
    port, log = free_port(), tmp_path / "log"
    with redis_or_skip(appendfsync="everysec") as redis:
        admin, scrape = secret_files(tmp_path / "secret", redis.url)
        changed = {"DUALSTREAM_PORT": str(port), "DUALSTREAM_DRAIN_S": "100"}
        with (
            running(overlay, tmp_path / "secret", log, **changed) as process,
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
        ):
            probes = {
                name: container(overlay)[f"{name}Probe"]["httpGet"]["path"]
                for name in ("startup", "liveness", "readiness")
            }

            def answers(path: str) -> int:
                try:
                    return client.get(path).status_code
                except httpx.TransportError:
                    assert process.poll() is None, log.read_text()
                    return 0

            until(lambda: answers(probes["startup"]) == answers(probes["readiness"]) == 200, 60)
            client.headers["Authorization"] = f"Bearer {admin}"
            client.put("/models/m", json={"algorithm": "sgd"}).raise_for_status()
            client.post("/models/m/learn", json={"x": {"a": 1}, "y": 1}).raise_for_status()
            client.headers["Authorization"] = f"Bearer {scrape}"
            learned = 'dualstream_samples_total{model="m",outcome="learned"} 1.0'
            assert learned in client.get("/metrics").text
            assert client.put("/models/n", json={}).status_code == 403
            inside = Path(f"/proc/{process.pid}")
            assert "Uid:\t10001\t10001\t10001\t10001" in (inside / "status").read_text()
            mounts = [line.split() for line in (inside / "mountinfo").read_text().splitlines()]
            assert {"/": True, "/tmp": False} == {
                mount[4]: "ro" in mount[5].split(",")
                for mount in mounts
                if mount[4] in ("/", "/tmp")
            }
            written = {path.name for path in (inside / "root/mnt/data").iterdir()}
            assert ("dualstream.db" in written) == (overlay == "sqlite")
            assert bool(written) == (overlay == "sqlite")
            process.send_signal(signal.SIGTERM)
            assert "the kernel cache failed" not in log.read_text()
            until(lambda: answers(probes["readiness"]) == 503)
            assert answers(probes["liveness"]) == 200
            process.send_signal(signal.SIGTERM)  # the second one ends the drain
            grace_s = pod(overlay)["spec"]["terminationGracePeriodSeconds"]
            assert process.wait(grace_s) == 0, log.read_text()
            assert log.read_text().rstrip().endswith('"message":"stopped"}')
