"""The README's session runs as it is written there."""

import json
import re
import subprocess
from pathlib import Path

from service.demo.server_process import ServerProcess

README = (Path(__file__).parent.parent.parent / "README.md").read_text()


def session() -> str:
    return re.search(r"<!-- session:.*?-->\n```sh\n(.*?)```", README, re.DOTALL).group(1)


def test_the_session_runs_as_written(tmp_path):
    script = session().replace("curl -s", "curl -sf -w '\\n'")
    with ServerProcess(f"sqlite:///{tmp_path / 'readme.db'}") as server:
        script = script.replace("localhost:8000", server.url.removeprefix("http://"))
        done = subprocess.run(
            ["bash", "-e", "-c", script], capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 0, done.stdout + done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    created, first, second, third, one, many, metrics, certificate = answers
    assert created["id"] == "clicks"
    # The answer that the README shows is the one that comes back.
    shown = re.search(r"```json\n(\{\"model\": \"clicks\".*?\})\n```", README, re.DOTALL).group(1)
    assert first == json.loads(shown)
    assert (second["seq"], third["seq"], third["count"]) == (3, 5, 2)
    assert one["label"] == 1 and one["seq"] == 5
    assert len(many["scores"]) == 2
    assert metrics["samples"] == 5 and certificate["rows"] == 5
    assert "dualstream_samples_total" in done.stdout


def test_readme_is_short():
    assert len(README.splitlines()) <= 150
