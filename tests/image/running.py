"""The image's command in separate namespaces, with a read-only root.

In a mount namespace the container's tree is bound over itself and remounted read-only, as an engine
does for `--read-only`. buildah binds that into its chroot, and a bind of a read-only mount is
read-only. Only /data, a volume, is writable; in a second run /tmp is a file system in memory, as in
the compose file. The network namespace has only loopback, so port 8000 is free and no other host is
reached. The process namespace ends all processes with this one.
"""

import fcntl
import json
import os
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.image.buildah import STORE, buildah, described, run_command

URL = "http://127.0.0.1:8000"
WORKERS = 2
READY_WITHIN_S = 120.0
STOPPED_WITHIN_S = 30.0
# Files that a browser loads, and the API description.
PAGES = (
    *("/", "/docs", "/openapi.json", "/static/js/main.js", "/static/dashboard.css"),
    *("/static/vendor/uplot/uPlot.iife.min.js", "/static/vendor/swagger-ui/swagger-ui-bundle.js"),
)
COUNT_COMPILED = """
from dualstream.service.server.compile_kernels import compile_here, kernel_modules
compile_here(list(kernel_modules()))
from dualstream.solvers.jit import compiled_count
print(compiled_count())
"""
MUST_NOT_WRITE = ("/new", "/tmp/new", "/app/new", "/opt/kernels/new", "/usr/local/new")


class Running:
    """A container of an image at `root`.

    buildah creates its volume, /data, outside the container, writable.
    """

    def __init__(self, image: str, container: str, root: Path) -> None:
        self.configuration = described(image)["Docker"]["config"]
        self.container, self.root = container, root
        self.user = (root / "data").stat().st_uid
        self.data = volume(container)

    def run(self, *command: str, **variables: str) -> tuple[bool, str]:
        """Did a command in the container succeed, and its output."""
        # With a read-only root Debian's buildah fails during clean-up, after the command: the
        # output is complete, and the exit code is lost.
        got = ["sh", "-c", '"$@" 2>&1 && echo "went well"; true', "sh", *command]
        request = run_command(self.container, got, variables)
        said = subprocess.run(request, capture_output=True, text=True).stdout
        return said.endswith("went well\n"), said.removesuffix("went well\n").strip()

    @contextmanager
    def served(self, **variables: str) -> Iterator[float]:
        """Run the image's command; yields the seconds until it is healthy. Ends it by SIGTERM."""
        command = [*self.configuration["Entrypoint"], *self.configuration["Cmd"]]
        started = time.monotonic()
        log = (STORE / "run.log").open("a")
        begun = run_command(self.container, command, variables)
        process = subprocess.Popen(begun, stdout=log, stderr=log)
        check = self.configuration["Healthcheck"]["Test"]
        assert check[0] == "CMD", check
        while not self.run(*check[1:], **variables)[0]:
            assert process.poll() is None, "the image's command ended"
            assert time.monotonic() - started < READY_WITHIN_S, "never healthy"
            time.sleep(0.1)
        yield time.monotonic() - started
        os.kill(first_process_of(self.user), signal.SIGTERM)
        process.wait(STOPPED_WITHIN_S)


def volume(container: str) -> Path:
    """Folder of the one volume that the image declares."""
    result = json.loads(buildah("inspect", container))["ContainerID"]
    kept = STORE / "images" / "vfs-containers" / result / "userdata" / "buildah-volumes"
    [folder] = kept.iterdir()
    return folder


def first_process_of(user: int) -> int:
    """The process of a user, in this namespace, whose parent is not of this user.

    Leaves out buildah's own process: at its end the kernel kills the container's.
    """
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and folder.stat().st_uid == user:
            state, parent, *_ = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            is_buildah = (folder / "cmdline").read_bytes().startswith(b"buildah")
            if state != "Z" and not is_buildah:  # not an orphaned zombie
                parents[int(folder.name)] = int(parent)
    [result] = [process for process, parent in parents.items() if parent not in parents]
    return result


def raise_loopback() -> None:
    """Bring `lo` up; it is down in a new network namespace."""
    up, running, set_flags = 0x1, 0x40, 0x8914
    with socket.socket() as request:
        fcntl.ioctl(request, set_flags, struct.pack("16sh14x", b"lo", up | running))


def make_read_only(container: str, root: Path) -> None:
    # buildah's mount points must exist already: a first run creates all but one.
    subprocess.run(run_command(container, ["true"]), check=True)
    (root / "run" / ".containerenv").touch()
    for options in (["--bind", str(root), str(root)], ["-o", "remount,bind,ro", str(root)]):
        subprocess.run(["mount", *options], check=True)


def asked(path: str, body: Any = None, method: str = "GET", url: str = URL) -> bytes:
    headers = {"content-type": "application/json"}
    sent = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, sent, headers, method=method)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with urllib.request.urlopen(request, timeout=30, context=context) as answer:
        return answer.read()


def tls(running: Running) -> dict[str, str]:
    """Settings for several workers with TLS, with a certificate in the volume."""
    made = ["-keyout", str(running.data / "tls.key"), "-out", str(running.data / "tls.crt")]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=here"]
    subprocess.run(["openssl", "req", "-x509", *kind, *made], check=True, capture_output=True)
    for name in ("tls.key", "tls.crt"):
        os.chown(running.data / name, running.user, running.user)
    files = {"SSL_CERTFILE": "/data/tls.crt", "SSL_KEYFILE": "/data/tls.key"}
    got = {"HOST": "0.0.0.0", "ALLOW_ANONYMOUS": "1", "WORKERS": str(WORKERS), **files}
    return {f"DUALSTREAM_{name}": value for name, value in got.items()}


def workers_metrics() -> str:
    return asked("/metrics", url=URL.replace("http:", "https:")).decode()


def check_workers(running: Running) -> float:
    """Several workers with TLS: healthy, and sharing their counters."""
    with running.served(**tls(running)) as healthy_s:
        # One worker can be ready before another has started.
        until = time.monotonic() + READY_WITHIN_S
        while f"dualstream_workers {WORKERS}.0" not in workers_metrics():
            assert time.monotonic() < until, "a worker never started"
            time.sleep(0.1)
    return healthy_s


def check(running: Running) -> dict[str, Any]:
    """Start, learn a sample, stop, start again and read it back; returns measurements."""
    _, user = running.run("id", "-u")
    assert user == str(running.user) != "0", user
    for path in MUST_NOT_WRITE:
        _, said = running.run("touch", path)
        assert "Read-only file system" in said, f"{path}: {said}"
    assert running.run("touch", "/data/new")[0]
    with running.served() as first_s:
        asked("/models/clicks", method="PUT")
        learned = json.loads(asked("/models/clicks/learn", {"x": {"site": "news"}, "y": 1}, "POST"))
        for page in PAGES:
            assert asked(page), page
    with running.served() as again_s:
        got = json.loads(asked("/models/clicks"))
    by_volume_s = check_workers(running)
    assert (running.data / ".tmp").is_dir()
    baked = sum(path.is_file() for path in (running.root / "opt" / "kernels").rglob("*"))
    assert baked > 100
    _, said = running.run("python", "-P", "-c", COUNT_COMPILED)
    assert said == "0", f"kernels compiled at start: {said}"
    shutil.rmtree(running.data / ".tmp")
    memory = ["-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(running.root / "tmp")]
    subprocess.run(["mount", *memory], check=True)
    by_memory_s = check_workers(running)
    assert not (running.data / ".tmp").exists(), "what can be in memory went to the volume"
    return {
        "user": int(user),
        "healthy_s": [round(first_s, 1), round(again_s, 1)],
        "workers_healthy_s": [round(by_volume_s, 1), round(by_memory_s, 1)],
        "learned": learned,
        "read_back": got,
        "kernel_files": baked,
    }


if __name__ == "__main__":
    image, container, root = sys.argv[1:]
    raise_loopback()
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    make_read_only(container, Path(root))
    json.dump(check(Running(image, container, Path(root))), sys.stdout)
