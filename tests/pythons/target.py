"""A fresh Python environment with the installed package: on this machine or in another root."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.image.index import pip_configuration

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ("dualstream", "client", "consume", "service", "solvers", "wire")
"""Folders that become the package. Tests of an installed package must not see them."""
SUITES = ("tests/solvers/test_contract.py", "tests/service/codecs", "tests/client")
EXTRAS = "server,dask,sklearn"
TOOLS = ("httpx2", "hypothesis", "pytest", "pytest-xdist")
"""Besides EXTRAS, what these suites import."""
RCLONE = ROOT / ".cache" / "rclone"
JOBS = 2
LONGEST_S = 1800
"""Time after which a command is ended. The longest takes a few minutes."""


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@contextmanager
def step(name: str) -> Iterator[None]:
    """Print a line with the seconds of a step when it ends."""
    began = time.monotonic()
    yield
    say(f"{name}: {time.monotonic() - began:.0f} s")


@dataclass(frozen=True)
class Target:
    """Where the package is installed and used.

    python   interpreter that makes the environment
    folder   folder of environment, home and tests, as this process sees it
    inside   the same folder as commands see it
    prefix   command that runs another one there
    """

    python: str
    folder: Path
    inside: str
    prefix: tuple[str, ...] = ()

    def command(self, *words: str, **variables: str) -> list[str]:
        """Command line that runs `words` in the folder, with an empty home and few variables."""
        env = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        env |= {"HOME": f"{self.inside}/home", "PATH": f"{self.inside}/env/bin:/usr/bin:/bin"}
        env |= {"LC_ALL": "C.UTF-8", **variables}
        settings = [f"{name}={value}" for name, value in env.items()]
        return [*self.prefix, "env", "-i", "-C", self.inside, *settings, *words]

    def run(self, *words: str, **variables: str) -> str:
        """Standard output of a command. Ends this program if the command fails or hangs."""
        # In the foreground, where Ctrl-C ends it, too.
        limit = ("timeout", "--foreground", "-k", "10", str(LONGEST_S))
        command = [*limit, *self.command(*words, **variables)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"failed: {' '.join(words)}\n{done.stdout[-5000:]}")
        return done.stdout

    def install(self, wheel: Path, extras: str, *tools: str) -> None:
        """Make a fresh environment, with the versions of constraints.txt."""
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "home").mkdir(parents=True)
        for file in (wheel, ROOT / "constraints.txt"):
            shutil.copy(file, self.folder)
        configuration = self.folder / "pip.conf"
        configuration.write_text(pip_configuration()[0])
        try:
            self._install(f"./{wheel.name}[{extras}]", *tools)
        finally:
            configuration.unlink()  # it may have a password

    def _install(self, *requirements: str) -> None:
        self.run(self.python, "-m", "venv", "env")
        options = ("-qq", "--no-compile", "--no-cache-dir", "--disable-pip-version-check")
        self.run(
            *("python", "-m", "pip", "install", *options, "-c", "constraints.txt"),
            *requirements,
            PIP_CONFIG_FILE=f"{self.inside}/pip.conf",
        )

    def copy_tests(self) -> None:
        """Copy this working tree without the package, and an S3 server for tests of the client."""
        command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        for name in listed.stdout.split("\0"):
            if name and name.split("/")[0] not in PACKAGE and (ROOT / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.folder / name)
        if RCLONE.exists():
            shutil.copytree(RCLONE, self.folder / RCLONE.relative_to(ROOT))

    def compile_kernels(self) -> None:
        self.run("python", "-m", "dualstream.service.server.compile_kernels")

    def run_suites(self) -> str:
        """pytest's last line."""
        options = ("-n", str(JOBS), "--dist", "worksteal", "-p", "no:cacheprovider")
        return self.run("python", "-m", "pytest", *options, *SUITES).splitlines()[-1]

    def digests(self) -> dict[str, Any]:
        return json.loads(self.run("python", "-m", "tests.pythons.digests"))


def compared(mine: dict[str, Any], other: dict[str, Any]) -> str:
    """A line on the digests of two Pythons.

    Ends the program if they differ on the same arithmetic: versions of a C library whose functions
    return the same are the same.
    """
    ran = [f"Python {one['python']} ({one['identity']})" for one in (mine, other)]
    arithmetic = {re.sub(r"glibc \S+", "", one["identity"]) for one in (mine, other)}
    different = [name for name, one in mine["digests"].items() if other["digests"].get(name) != one]
    if different and len(arithmetic) == 1:
        raise SystemExit(f"states differ between {' and '.join(ran)}: {', '.join(different)}")
    total = len(mine["digests"])
    return f"states of {' and '.join(ran)}: {total - len(different)} of {total} digests are equal"


def build_wheel(folder: Path) -> Path:
    """The pure wheel of this working tree."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"no wheel could be built:\n{done.stdout}{done.stderr}")
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    [wheel] = folder.glob("*-py3-none-any.whl")
    return wheel


def check(target: Target, wheel: Path) -> None:
    """Install the wheel, compile the kernels, run the suites and compare digests of states."""
    with step("  package and test tools installed"):
        target.install(wheel, EXTRAS, *TOOLS)
        target.copy_tests()
    with step("  all kernels compiled"):
        target.compile_kernels()
    with step("  contract, codec and client suites run"):
        say(f"  {target.run_suites()}")
    here = subprocess.run(
        [sys.executable, "-m", "tests.pythons.digests"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    say(f"  {compared(json.loads(here.stdout), target.digests())}")
