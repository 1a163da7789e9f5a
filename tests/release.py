"""Build everything that a release consists of, and use it: python -m tests.release

Prints a line for each step. The first failure ends it. Nothing is published.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from dualstream import __version__
from tests.docs.documents import DOCUMENTS, session
from tests.pythons import debian13
from tests.pythons.target import ROOT, Target, say, step

DIST = ROOT / ".cache" / "dist"
PROGRAMS = ("buildah", "curl", "debootstrap", "git", "make", "openssl", "unshare")


def missing() -> list[str]:
    """What this machine lacks."""
    reasons = [f"{name} is not installed" for name in PROGRAMS if not shutil.which(name)]
    if os.geteuid() != 0:
        reasons.append("root, for the image and a root of Debian 13")
    elif reason := debian13.why_not():
        reasons.append(f"a root of Debian 13: {reason}")
    return reasons


def check_tag() -> str:
    """What the tags of this commit say of the version."""
    command = ["git", "tag", "--points-at", "HEAD", "--list", "v*"]
    tags = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    wrong = sorted(set(tags.stdout.split()) - {f"v{__version__}"})
    if wrong:
        raise SystemExit(f"the tag {wrong[0]} is not of the version, {__version__}")
    return "the commit has its tag" if tags.stdout else f"its tag will be v{__version__}"


def succeed(*command: str) -> str:
    """Output of a command in this folder. Ends this program with it if the command fails."""
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"failed: {' '.join(command)}\n{done.stdout[-5000:]}")
    return done.stdout


def distributions() -> tuple[list[Path], Path]:
    """The wheels and the sdist of `make dist`, all of this version."""
    wheels, sdists = sorted(DIST.glob("*.whl")), sorted(DIST.glob("*.tar.gz"))
    names = [path.name for path in (*wheels, *sdists)]
    wrong = [
        name for name in names if not re.match(rf"dualstream-{re.escape(__version__)}[-.]", name)
    ]
    if wrong or len(sdists) != 1 or not any(one.name.endswith("-none-any.whl") for one in wheels):
        raise SystemExit(f"not the distributions of {__version__}: {', '.join(names)}")
    return wheels, sdists[0]


def target_for(wheel: Path, folder: Path) -> Target:
    """The root of Debian 13 if its Python takes the wheel, or else this machine."""
    python = wheel.name.split("-")[2]
    if python in ("py3", "cp313"):
        return debian13.target(debian13.make_root())
    mine = f"cp3{sys.version_info.minor}"
    if python != mine:
        raise SystemExit(f"{wheel.name} needs Python {python}; here are {mine} and cp313")
    return Target(sys.executable, folder, str(folder))


def run_session(target: Target) -> tuple[float, float]:
    """Run the README's session on a new server; seconds until it is ready and until the end."""
    began = time.monotonic()
    store = f"sqlite:///{target.inside}/home/rows.db"
    command = target.command("dualstream", "serve", "--port", "0", "--store", store)
    said: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            for line in server.stdout:
                said.append(line)
                if line.startswith("ready"):
                    break
            else:
                raise SystemExit(f"the server ended before it was ready:\n{''.join(said)}")
            ready_s = time.monotonic() - began
            [host] = re.findall(r"listens on http://(\S+)", "".join(said))
            script = session(DOCUMENTS["README.md"]).replace("localhost:8000", host)
            script = script.replace("curl -s", "curl -sf -w '\\n'")
            answers = succeed("bash", "-e", "-o", "pipefail", "-c", script)
            if answers.count('"learned":') < 3:
                raise SystemExit(f"the session learned too little:\n{answers}")
        finally:
            # `unshare` ignores SIGTERM, and its end kills the server.
            server.kill()
    return ready_s, time.monotonic() - began


def main() -> None:
    lacks = missing()
    if lacks:
        raise SystemExit("release-check lacks:\n" + "\n".join(f"  {reason}" for reason in lacks))
    with step("release-check"):
        with step(f"version {__version__}, {check_tag()}; changelog, policy and manifests agree"):
            succeed(sys.executable, "-m", "pytest", "-q", "tests/test_release.py")
        for name in ("dist", "docs", "sbom", "image-check"):
            with step(f"make {name}"):
                printed = succeed("make", "--no-print-directory", name)
        say(next(line for line in printed.splitlines() if line.startswith("image: ")))
        wheels, sdist = distributions()
        for path in (*wheels, sdist):
            say(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
        for wheel in wheels:
            target = target_for(wheel, ROOT / ".cache" / "release")
            with step(f"{wheel.name}: installed in a fresh environment, with an empty home"):
                target.install(wheel, "server")
            ready_s, end_s = run_session(target)
            say(f"  README's session: server ready after {ready_s:.0f} s, end after {end_s:.0f} s")


if __name__ == "__main__":
    main()
