"""Build the image from the Dockerfile and run it: python -m tests.image

Needs root and no container engine: buildah builds and runs it, and debootstrap makes the base image
where none can be pulled.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.image.base import base_image
from tests.image.buildah import COMMAND, STORE, buildah, described
from tests.image.index import mounts, pip_configuration
from tests.image.running import WORKERS

ROOT = Path(__file__).parent.parent.parent
IMAGE = "localhost/dualstream:checked"
# Folders that .dockerignore has to exclude.
NEVER_INSIDE = ("tests", "load_tests", ".git", ".venv", ".cache", "docs", "examples")


def build(base: str) -> str:
    """Build it from this base; returns the marker in the secret."""
    configuration, mark = pip_configuration()
    with tempfile.NamedTemporaryFile("w", dir=STORE) as secret:
        secret.write(configuration)
        secret.flush()
        seen = [word for mount in mounts(configuration) for word in ("--volume", mount)]
        command = [*COMMAND, "build", "--isolation=chroot", "--pull=false", "--format=docker"]
        command += ["--from", base]
        command += ["--secret", f"id=pip,src={secret.name}", *seen, "--tag", IMAGE, str(ROOT)]
        log = STORE / "build.log"
        with log.open("w") as said:
            if subprocess.run(command, stdout=said, stderr=said).returncode != 0:
                raise SystemExit(f"the build failed, see {log}:\n{log.read_text()[-2000:]}")
    return mark


def check_contents(root: Path, mark: str) -> None:
    """No secret in a layer or in the configuration, and no files that the server does not need."""
    image = described(IMAGE)
    assert mark not in json.dumps(image), "a secret is in the image's configuration"
    labels = image["Docker"]["config"]["Labels"]
    assert labels["org.opencontainers.image.title"] == "Dualstream", labels
    result = subprocess.run(
        ["grep", "-rlF", "--devices=skip", mark, str(root)], capture_output=True
    )
    assert not result.stdout, f"a secret is in a layer: {result.stdout.decode()}"
    inside = {path.name for path in (root / "app").iterdir()}
    assert not inside & set(NEVER_INSIDE), inside


def run(container: str, root: Path) -> dict[str, object]:
    """Start, use and stop it in separate namespaces; returns measurements."""
    done = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        + [sys.executable, "-m", "tests.image.running", IMAGE, container, str(root)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    if done.returncode != 0:
        raise SystemExit("the image does not run as it should")
    return json.loads(done.stdout)


def sizes(base: str) -> str:
    """Compressed size, as a registry stores it, and unpacked size; of each what the base takes."""
    parts = [f"{layers_bytes(name) / 1e6:.0f} MB" for name in (IMAGE, base)]
    unpacked = [buildah("images", "--format", "{{.Size}}", name) for name in (IMAGE, base)]
    return f"{parts[0]} compressed (base {parts[1]}), {unpacked[0]} unpacked (base {unpacked[1]})"


def layers_bytes(image: str) -> int:
    """Bytes of the layers, compressed by gzip."""
    with tempfile.TemporaryDirectory(dir=STORE) as folder:
        buildah("push", "--quiet", image, f"oci:{folder}")
        blobs = Path(folder) / "blobs"
        [entry] = json.loads((Path(folder) / "index.json").read_text())["manifests"]
        manifest = json.loads((blobs / entry["digest"].replace(":", "/")).read_text())
    return sum(layer["size"] for layer in manifest["layers"])


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Print measurements, or what is missing."""
    if os.geteuid() != 0:
        raise SystemExit("image-check needs root: buildah changes roots and mounts")
    missing = [
        name for name in ("buildah", "debootstrap", "openssl", "unshare") if not shutil.which(name)
    ]
    if missing:
        raise SystemExit(f"install these first: {' '.join(missing)}")
    STORE.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    base, origin = base_image((ROOT / "Dockerfile").read_text())
    say(f"base: {base}, {origin}")
    based = time.monotonic()
    mark = build(base)
    built = time.monotonic()
    container = buildah("from", "--pull-never", IMAGE)
    try:
        root = Path(buildah("mount", container))
        check_contents(root, mark)
        seen = run(container, root)
    finally:
        buildah("rm", container)
    say(f"image: {sizes(base)}")
    say(f"base ready in {based - started:.0f} s, built in {built - based:.0f} s")
    say(f"ran with a read-only root as user {seen['user']}: healthy after {seen['healthy_s']} s")
    say(
        f"{WORKERS} workers with TLS: healthy after {seen['workers_healthy_s']} s, temporary files "
        "on the volume, then in memory"
    )
    say(f"kernels: {seen['kernel_files']} baked files, all hit; none compiled at start")
    say(f"learned {seen['learned']}\nread back after a restart: {seen['read_back']}")


if __name__ == "__main__":
    main()
