"""Base image of the Dockerfile: pulled, or built from Debian's packages."""

import shutil
import subprocess
from pathlib import Path

from tests.image.buildah import COMMAND, STORE, buildah, has_image

MIRROR = "http://deb.debian.org/debian"
PACKAGES = "python3,python3-pip,ca-certificates"
# PATH of the image that it replaces.
PATH = "PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"


def base_image(dockerfile: str) -> tuple[str, str]:
    """Provide the image of the FROM line, or a stand-in; returns its name and its origin."""
    name = next(line.split()[1] for line in dockerfile.splitlines() if line.startswith("FROM "))
    full, stand_in = f"docker.io/library/{name}", f"localhost/{name.partition('@')[0]}"
    for made in (full, stand_in):
        if has_image(made):
            return made, "kept from an earlier run"
    if subprocess.run([*COMMAND, "pull", full], capture_output=True).returncode == 0:
        return full, "pulled"
    version, _, suite = name.partition("@")[0].removeprefix("python:").partition("-slim-")
    _bootstrap(stand_in, suite, ".".join(version.split(".")[:2]))
    return stand_in, f"a stand-in of Debian {suite}'s packages, as no registry was reached"


def _bootstrap(name: str, suite: str, python: str) -> None:
    root = STORE / "debian"
    shutil.rmtree(root, ignore_errors=True)
    command = [
        "debootstrap",
        "--variant=minbase",
        f"--include={PACKAGES}",
        suite,
        str(root),
        MIRROR,
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    if not (root / "usr" / "bin" / f"python{python}").exists():
        raise SystemExit(f"Debian {suite} has no Python {python}")
    # In an image pip may install next to Debian's packages, and `python` is Debian's.
    (root / "usr" / "lib" / f"python{python}" / "EXTERNALLY-MANAGED").unlink(missing_ok=True)
    (root / "usr" / "bin" / "python").symlink_to("python3")
    for kept in ("var/cache/apt", "var/lib/apt/lists"):
        shutil.rmtree(root / kept)
    container = buildah("from", "scratch")
    # Top-level links of Debian's tree (/bin, /lib) have to stay links.
    made = Path(buildah("mount", container))
    subprocess.run(["cp", "-a", f"{root}/.", str(made)], check=True)
    buildah("config", "--env", PATH, "--cmd", "python3", container)
    buildah("commit", "--quiet", "--rm", container, name)
    shutil.rmtree(root)
