"""The Python blocks of four guides run as written and print what they say."""

import subprocess
import sys

import pytest

from dualstream.service.cli.demo.server_process import ServerProcess
from tests.docs.documents import ROOT, assert_printed, program_of

CREATE = 'Client("http://127.0.0.1:8000").create("sourced")\n'


@pytest.mark.parametrize(
    ("guide", "before", "progress"),
    [
        ("python-client", "", "3,000 rows"),
        ("tables", "", ""),
        ("sources", f"from dualstream.client import Client\n{CREATE}", ""),
    ],
)
def test_the_blocks_run_as_written(tmp_path, guide, before, progress):
    program = before + program_of(guide)
    with ServerProcess(f"sqlite:///{tmp_path / 'client.db'}") as server:
        done = subprocess.run(
            [sys.executable, "-c", program.replace("http://127.0.0.1:8000", server.url)],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "PATH": ""},
        )
    assert done.returncode == 0, done.stderr
    assert_printed(program, done.stdout)
    assert progress in done.stderr


def test_the_blocks_of_the_solvers_run_as_written():
    names = {}
    exec(program_of("offline"), names)
    assert names["found"].status == "converged" and len(names["found"].predict(names["x"])) == 200
