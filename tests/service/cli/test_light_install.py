"""The client and its commands need none of the packages that only the server needs."""

import json
import subprocess
import sys

import pytest

from dualstream.service.cli.commands import COMMANDS
from tests.docs.documents import ROOT

HEAVY = """
import sys

BLOCKED = {
    "fastapi", "google_crc32c", "numba", "numpy", "pandas", "prometheus_client", "pyarrow",
    "pydantic_settings", "redis", "scipy", "sklearn", "starlette", "uvicorn", "uvloop", "zstandard",
}


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Blocker())
"""


def light(program: str, *args: str) -> subprocess.CompletedProcess:
    """Run a program in a process that cannot import what only the server needs."""
    return subprocess.run(
        [sys.executable, "-c", HEAVY + program, *args],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT), "COLUMNS": "100"},
        timeout=100,
    )


def test_the_client_needs_httpx_and_msgspec_alone(shared_server):
    program = """
BLOCKED |= {"click", "pydantic", "rich", "typer"}  # typer itself needs pydantic
import asyncio
from decimal import Decimal
from dualstream.client import AsyncClient, Client

class Scalar:
    def tolist(self):
        return 0.5

async def awaited(url):
    async with AsyncClient(url) as client:
        return (await client.learn("light", {"a": 1}, 0)).seq

with Client(sys.argv[1]) as client:
    client.create("light", {"algorithm": "sgd", "features": "hashed"})
    print(client.learn("light", [{"a": Scalar()}, {"a": Decimal(2)}], [1, 0]).learned)
    print(asyncio.run(awaited(sys.argv[1])))
    client.delete("light")
"""
    done = light(program, shared_server.url)
    assert (done.returncode, done.stdout) == (0, "2\n3\n"), done.stderr


def test_a_zst_file_says_which_package_it_needs(tmp_path):
    path = tmp_path / "rows.csv.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd")
    program = """
from dualstream.client import BadInput, RowFile
try:
    list(RowFile(sys.argv[1], "text/csv").pieces())
except BadInput as wrong:
    print(wrong)
"""
    assert (
        light(program, str(path)).stdout
        == f"{path}: .zst files need zstandard: pip install zstandard\n"
    )


CLIENT_COMMANDS = [
    *("audit", "certificate", "columns", "consume", "create", "delete", "export"),
    *("labels", "learn", "members", "metrics", "models", "new-key", "observe", "predict", "refit"),
    *("resume", "rollback", "show", "sources", "status", "versions", "watch", "weights"),
]


def test_learners_name_the_package_that_they_need():
    program = """
import dualstream
print(dualstream.Client)
try:
    import dualstream.solvers
except ModuleNotFoundError as wrong:
    print(wrong)
dualstream.make_learner
"""
    done = light(program)
    first, second = done.stdout.splitlines()
    assert first.startswith("<class")
    assert second == "dualstream.solvers needs numba: pip install 'dualstream[server]'"
    assert "make_learner needs numba: pip install 'dualstream[server]'" in done.stderr


def commands(*lines: str) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of commands, run without the server's packages."""
    program = """
import json
from typer.testing import CliRunner
from dualstream.service.cli import app
for line in sys.argv[1:]:
    done = CliRunner().invoke(app, line.split(), prog_name="dualstream")
    print(json.dumps([done.exit_code, done.stdout, done.stderr]))
"""
    done = light(program, *lines)
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_commands_of_the_client_run_without_the_server(shared_server):
    listed, models, *helped = commands(
        "-h",
        f"models --json --url {shared_server.url}",
        *(f"{name} {'-h' if k % 2 else '--help'}" for k, name in enumerate(CLIENT_COMMANDS)),
    )
    assert models[0] == 0 and models[1].startswith("["), models
    for name, (code, said, errors) in zip(CLIENT_COMMANDS, helped, strict=True):
        assert f" {name} " in listed[1]
        assert code == 0 and f"Usage: dualstream {name}" in said and not errors, (said, errors)


@pytest.mark.parametrize(
    "option, said", [("-h", "Learn the rows of files"), ("--version", "dualstream ")]
)
def test_help_and_version_import_no_command(option, said):
    program = f"""
BLOCKED |= {{"httpx", "markdown_it", "pydantic"}}  # markdown_it: much of a start
from dualstream.service.cli import app
app(["{option}"])
"""
    done = light(program)
    assert done.returncode == 0 and said in done.stdout, done.stderr


def test_commands_of_the_server_say_that_it_is_not_installed():
    names = sorted(set(COMMANDS) - set(CLIENT_COMMANDS))
    lines = [f"{name}{rest}" for name in names for rest in ("", " --help", " m --port 1")]
    said = "the server is not installed: pip install 'dualstream[server]'\n"
    assert commands(*lines) == [(2, "", said)] * len(lines)
    assert "serve" in names
