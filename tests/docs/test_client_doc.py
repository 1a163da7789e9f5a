"""The Python blocks of four guides run as written and print what they say."""

import re
import subprocess
import sys

import pytest

from dualstream.service.cli.demo.server_process import ServerProcess
from tests.docs.documents import ROOT

CREATE = 'Client("http://127.0.0.1:8000").create("clicks")\n'


@pytest.mark.parametrize(
    ("guide", "before", "progress"),
    [
        ("python-client", "", "3,000 rows"),
        ("tables", "", ""),
        ("sources", f"from dualstream.client import Client\n{CREATE}", ""),
        ("dask", "", ""),
    ],
)
def test_the_blocks_run_as_written(tmp_path, guide, before, progress):
    text = (ROOT / f"docs/guides/{guide}.md").read_text()
    program = before + "".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    got = re.findall(r"print\(.*\)  # (.*)", program)
    with ServerProcess(f"sqlite:///{tmp_path / 'client.db'}") as server:
        # A file, which the processes of a Dask cluster import.
        program = program.replace("http://127.0.0.1:8000", server.url)
        (tmp_path / "program.py").write_text(program)
        done = subprocess.run(
            [sys.executable, "program.py"],
            capture_output=True,
            text=True,
            timeout=100,
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "PATH": ""},
        )
    assert done.returncode == 0, done.stderr
    lines = iter(done.stdout.splitlines())
    for expected in got:
        beginning = expected.removesuffix("...")
        assert any(line.startswith(beginning) for line in lines), (expected, done.stdout)
    assert progress in done.stderr
