"""`import dualstream` exports the client and the learners, and imports them on first use."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def run(program: str) -> str:
    """The output of a program in a process that has imported nothing yet."""
    # Where kernels are cached: compiling them takes longer than the test.
    kernels = {
        name: os.environ[name] for name in ("HOME", "DUALSTREAM_CACHE_DIR") if name in os.environ
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT)} | kernels,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_client_imports_no_numeric_library_and_no_server():
    program = """
import sys
import dualstream

assert not {name for name in sys.modules if name.startswith("dualstream.")}
from dualstream import AsyncClient, Client

heavy = {"numpy", "numba", "fastapi", "pydantic", "redis", "uvicorn", "dualstream.solvers"}
print(sorted(heavy & set(sys.modules)), Client.__module__, AsyncClient.__module__)
"""
    assert run(program) == "[] dualstream.client.clients dualstream.client.clients"


def test_the_learners_are_those_of_the_solvers():
    program = """
from dualstream import Batch, make_learner
from dualstream import solvers

assert Batch is solvers.Batch and make_learner is solvers.make_learner
print(make_learner({"algorithm": "sgd", "features": {"kind": "indexed", "dim": 2}}).samples)
"""
    assert run(program) == "0"


def test_every_public_name_exists_and_no_other_does():
    program = """
import dualstream

assert set(dualstream.__all__) <= set(dir(dualstream))
assert all(getattr(dualstream, name) is not None for name in dualstream.__all__)
assert not hasattr(dualstream, "Server")
print(dualstream.__version__)
"""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert run(program) == project["version"]
