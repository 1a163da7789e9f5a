"""A root of Debian 13, which has Python 3.13, and the package in it.

    python -m tests.pythons.debian13

Needs root that may mount, debootstrap and a mirror; without one of them it prints why and exits
with 0.
"""

import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.image.base import MIRROR
from tests.image.index import mounts, pip_configuration
from tests.pythons.target import ROOT, Target, build_wheel, check, say, step

SUITE = "trixie"
PYTHON = "3.13"
PACKAGES = "ca-certificates,python3,python3-venv,redis-server"
CACHE = ROOT / ".cache" / "debian13"
INSIDE = "/srv/dualstream"
NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
LONGEST_S = 900
"""debootstrap takes a minute or two. It waits long for a mirror that is silent."""
ENTER = """
set -e
root=$1; shift
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
while [ "$1" != -- ]; do
  mkdir -p "$root$1"
  mount -o bind,ro "$1" "$root$1"
  shift
done
shift
exec chroot "$root" "$@"
"""
"""Mounts are in a namespace of their own: they end with the command. Arguments: the root, folders
of this machine that the command may read, `--`, the command."""


def why_not() -> str | None:
    """Reason why no root can be made here."""
    if os.geteuid() != 0:
        return "it needs root: debootstrap makes devices, and tests run in a chroot"
    for name in ("debootstrap", "unshare"):
        if not shutil.which(name):
            return f"{name} is not installed"
    # Root of a container may lack the right.
    command = [*NAMESPACES, "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        return f"it needs the right to mount, as in a privileged container: {tried.stderr.strip()}"
    address = f"{MIRROR}/dists/{SUITE}/Release"
    try:
        urllib.request.urlopen(address, timeout=20).close()
    except OSError as error:
        return f"the mirror does not answer: {address}: {error}"
    return None


def make_root() -> Path:
    """The root, kept from an earlier run or made by debootstrap."""
    root, partial = CACHE / "root", CACHE / "partial"
    if root.exists():
        return root
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    log = CACHE / "debootstrap.log"
    command = [
        *("timeout", "--foreground", "-k", "10"),
        str(LONGEST_S),
        "debootstrap",
        "--variant=minbase",
        f"--include={PACKAGES}",
        SUITE,
        str(partial),
    ]
    with log.open("w") as said:
        done = subprocess.run([*command, MIRROR], stdout=said, stderr=said, check=False)
    if done.returncode != 0:
        raise SystemExit(f"debootstrap failed, see {log}:\n{log.read_text()[-2000:]}")
    if not (partial / "usr" / "bin" / f"python{PYTHON}").exists():
        raise SystemExit(f"Debian {SUITE} has no Python {PYTHON}")
    for file in ("resolv.conf", "hosts"):
        shutil.copy(f"/etc/{file}", partial / "etc" / file)
    partial.rename(root)
    return root


def target(root: Path) -> Target:
    readable = [mount.split(":")[0] for mount in mounts(pip_configuration()[0])]
    prefix = (*NAMESPACES, "sh", "-c", ENTER, "sh", str(root), *readable, "--")
    return Target(f"/usr/bin/python{PYTHON}", root / INSIDE.lstrip("/"), INSIDE, prefix)


def main() -> None:
    reason = why_not()
    if reason is not None:
        say(f"DEBIAN 13 SKIPPED: {reason}; nothing was tested with Python {PYTHON}")
        return
    with step(f"Debian 13 ({SUITE})"):
        with step("  root ready"):
            root = make_root()
        check(target(root), build_wheel(CACHE / "wheel"))


if __name__ == "__main__":
    sys.exit(main())
