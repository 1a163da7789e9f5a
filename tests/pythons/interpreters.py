"""The package with the other Pythons on PATH: python -m tests.pythons.interpreters

The states of models must have the same digests as with this Python.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.pythons.target import ROOT, Target, build_wheel, check, say, step

MIN_MINOR = 11
CACHE = ROOT / ".cache" / "pythons"


def on_path(path: str) -> list[tuple[int, Path]]:
    """Minor version and file of each python3.N in the folders of a PATH, in their order."""
    result = []
    for folder in path.split(os.pathsep):
        for file in sorted(Path(folder).glob("python3.*")):
            version = re.fullmatch(r"python3\.(\d+)", file.name)
            if version and int(version[1]) >= MIN_MINOR and os.access(file, os.X_OK):
                result.append((int(version[1]), file))
    return result


def executable(python: Path) -> tuple[str, str]:
    """The interpreter that a file on PATH starts, which can be a script of a version manager.

    Empty, with the reason, if it cannot make an environment.
    """
    command = [str(python), "-c", "import ensurepip, sys, venv; print(sys.executable)"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout.strip(), ""
    return "", (done.stderr.strip().splitlines() or ["it does not start"])[0]


def main() -> int:
    """Returns the exit code: 1 if a check fails."""
    done, failed = {sys.version_info.minor}, False
    wheel: Path | None = None
    for minor, python in on_path(os.environ["PATH"]):
        if minor in done:
            continue
        interpreter, reason = executable(python)
        if not interpreter:
            say(f"{python}: left out: {reason}")
            continue
        done.add(minor)
        wheel = wheel or build_wheel(CACHE / "wheel")
        folder = CACHE / f"3.{minor}"
        with step(interpreter):
            try:
                check(Target(interpreter, folder, str(folder)), wheel)
            except SystemExit as error:
                say(str(error))
                failed = True
    if wheel is None:
        say(f"no other Python from 3.{MIN_MINOR} on is on PATH: nothing was tested")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
