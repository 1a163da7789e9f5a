"""The commands of the README and of documents run as they are written there."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from service.demo.server_process import ServerProcess
from solvers._jit import DISABLED
from solvers.portfolio.fused import Blueprint
from solvers.portfolio.presets import PRESETS, REGRESSION_PRESETS, preset

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
PORTFOLIO = (ROOT / "docs" / "PORTFOLIO.md").read_text()
STREAMING = (ROOT / "docs" / "STREAMING.md").read_text()
VERSIONS = (ROOT / "docs" / "VERSIONS.md").read_text()
LATE_LABELS = (ROOT / "docs" / "LATE_LABELS.md").read_text()


def session(text: str) -> str:
    """The commands from the mark on, of one block in the README and of all in other documents."""
    blocks = re.findall(r"```sh\n(.*?)```", text[text.index("<!-- session:") :], re.DOTALL)
    return blocks[0] if text is README else "".join(blocks)


def answers_of(script: str, tmp_path: Path) -> tuple[list[dict], str]:
    """Run it against a server of its own; the objects that came back, and all that was said."""
    script = script.replace("curl -s", "curl -sf -w '\\n'")
    script = script.replace("dualstream replay", f"{sys.executable} -m service replay")
    store = f"sqlite:///{tmp_path / 'readme.db'}"
    with ServerProcess(store) as server:
        script = script.replace("localhost:8000", server.url.removeprefix("http://"))
        done = subprocess.run(
            ["bash", "-e", "-c", script],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            env=os.environ | {"DUALSTREAM_STORE": store, "PYTHONPATH": str(ROOT)},
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"], done.stdout


def test_the_session_runs_as_written(tmp_path):
    answers, said = answers_of(session(README), tmp_path)
    created, first, second, one, many, metrics, members, weights = answers[:8]
    numbered, third, certificate = answers[8:]
    assert (created["id"], created["spec"]["members"]) == ("clicks", "eight")
    # The answer that the README shows is the one that comes back.
    shown = re.search(r"```json\n(\{\"model\": \"clicks\".*?\})\n```", README, re.DOTALL).group(1)
    assert first == json.loads(shown)
    assert (second["seq"], second["count"]) == (3, 2)
    assert one["label"] == 1 and one["seq"] == 3
    assert len(many["scores"]) == 2
    assert metrics["samples"] == 3 and len(members["members"]) == 9
    assert "site=news" in [weight["name"] for weight in weights["weights"]]
    assert numbered["id"] == "numbered" and third["seq"] == 2 and certificate["rows"] == 2
    assert "dualstream_samples_total" in said


@pytest.mark.skipif(DISABLED, reason="too many rows without a compiler")
def test_the_commands_of_the_portfolio_run_as_written(tmp_path):
    answers, _ = answers_of(session(PORTFOLIO), tmp_path)
    assert answers[1]["learned"] == 2000
    compared = [answer for answer in answers if "low" in answer]
    assert [answer["a"] for answer in compared] == ["recent", "dual-3"]
    assert compared[0]["rows"] == 2000 and compared[1]["rows"] == 4000
    assert answers[-1]["member"] == "dual-30" and answers[-1]["gap"] >= 0.0
    promoted = next(answer for answer in answers if answer.get("name") == "dual-3")
    assert promoted["weight"] == 1.0


def test_the_commands_of_versions_run_as_written(tmp_path):
    answers, said = answers_of(session(VERSIONS), tmp_path)
    _, _, monday, _, listed, by_monday, undone, read, redone, what_if = answers
    assert listed["versions"] == [monday] and listed["kept_from"] == 1
    assert by_monday["seq"] == monday["seq"] == 1
    assert (undone["seq"], undone["to_seq"], read["samples"]) == (3, 1, 1)
    assert (redone["seq"], redone["to_seq"]) == (4, 2)
    assert "clicks at seq 2, from " in said
    assert what_if["left_out_rollbacks"] == 2 and what_if["spec"]["rho"] == 0.01


def test_the_commands_of_streaming_run_as_written(tmp_path):
    answers, said = answers_of(session(STREAMING), tmp_path)
    _, first, again, *lines = answers
    chunks = {"chunks": 2, "duplicate_chunks": 0, "duplicate_rows": 0}
    assert {
        "seq": 60000,
        "count": 60000,
    }.items() <= first.items() and chunks.items() <= first.items()
    assert again == first | {"duplicate": True, "duplicate_chunks": 2}
    assert [line.get("chunk") for line in lines] == [0, 1, None]
    assert (lines[-1]["seq"], lines[-1]["count"]) == (120000, 60000)
    assert "event: progress\nid: 120000-" in said


def test_the_commands_of_late_labels_run_as_written(tmp_path):
    answers, _ = answers_of(session(LATE_LABELS), tmp_path)
    _, served, labelled, again, by_default = answers
    assert served["remembered"] == 2 and len(served["scores"]) == 2
    assert (labelled["seq"], labelled["count"], labelled["rejected"]) == (1, 1, 1)
    assert [error["index"] for error in labelled["errors"]] == [1]
    assert again["duplicates"] == [{"index": 0, "seq": 1}] and again["duplicate"]
    assert by_default["remembered"] == 1


def test_every_member_of_a_list_is_described():
    regression = (ROOT / "docs" / "REGRESSION.md").read_text()
    for lists, text in ((PRESETS, PORTFOLIO), (REGRESSION_PRESETS, regression)):
        for members in lists.values():
            for member in members:
                assert f"| `{member['name']}` |" in text, member["name"]


def test_memory_of_a_feature_is_what_the_document_says():
    said = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \| (\d+) \|$", PORTFOLIO, re.MULTILINE)
    assert len(said) == 4
    for name, members, seconds, memory in said:
        plan = Blueprint([member for member in preset(name) if member["kind"] != "prior"])
        assert (len(plan.what), len(plan.starts)) == (int(members), int(seconds))
        assert 8 * plan.width + 20 == int(memory)


def test_readme_is_short():
    assert len(README.splitlines()) <= 150
